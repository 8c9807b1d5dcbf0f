"""The console in a real browser: it moves as things happen, works by keyboard, and has no
violation that axe-core finds.

With PILOTLIGHT_PICTURES=FOLDER pictures of the pages are left there.
"""

import base64
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from registry.domain.model import ModelSpec
from registry.domain.pod import PodInfo, PodReport, Samples
from registry.domain.pod_state import ANY_COPIES
from registry.redis.client import Registry
from tests import servers
from tests.gateway.console.browser import BROWSER, DRIVER, Browser, browser
from tests.gateway.gateway_harness import GatewayHarness, running_harness

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs Chromium and its chromedriver"),
]
AXE_VERSION = "4.14.1"
TAB = "\ue004"
DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""An image of one pixel."""


@pytest.fixture(scope="module")
def harness(
    redis: servers.RedisServer, client: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayHarness]:
    folder = tmp_path_factory.mktemp("gateway")
    with running_harness(folder, redis.url, "browser", client) as harness:
        yield harness


@pytest.fixture(scope="module")
def model(harness: GatewayHarness) -> ModelSpec:
    declared = harness.declare("wise")
    harness.start_pods("pod-a", "pod-b", slots=4, warm=declared)
    for number in range(5):
        harness.predict(declared, x_request_id=f"request-{number}")
    return declared


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, fetched with npm."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm, to fetch axe-core")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "install", "--ignore-scripts", "--no-audit", f"axe-core@{AXE_VERSION}"]
    if subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode:
        pytest.skip("npm cannot fetch axe-core")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


def console(harness: GatewayHarness, path: str = "") -> str:
    return f"{harness.gateway.url}/console{path}"


def keep_picture(window: Browser, name: str) -> None:
    folder = os.environ.get("PILOTLIGHT_PICTURES")
    if folder:
        window.save_picture(Path(folder) / f"{name}.png")


def test_the_overview_shows_a_model_that_becomes_warm(
    harness: GatewayHarness, model: ModelSpec, window: Browser
) -> None:
    window.open(console(harness))
    window.wait_for_text("default/wise")
    later = harness.declare("later")
    window.wait_for_text("default/later")
    window.wait_for_text("models 1 to 2 of 2")
    pods = harness.start_pods("pod-c")
    window.wait_for_text("pod-c")
    row = "return [...document.querySelectorAll('#grid tbody tr')].map((each) => each.innerText)"
    assert not any("later" in each and "device" in each for each in window.run(row))
    pods.control("pod-c", "warm", later.key)
    servers.wait_until(
        lambda: any("later" in each and "device" in each for each in window.run(row)),
        what="the cell shows the device",
    )
    keep_picture(window, "overview")
    assert window.errors() == []


def test_the_form_sends_a_request_and_leads_to_its_explanation(
    harness: GatewayHarness, model: ModelSpec, window: Browser
) -> None:
    window.open(console(harness, "/models/default/wise"))
    window.type("#try textarea[name=text]", "hello")
    window.run("document.querySelector('#try button').click()")
    window.wait_for_text("how it was routed")
    assert "200 in queue;dur=" in window.text()
    keep_picture(window, "model")
    window.run("document.querySelector('#answer a').click()")
    window.wait_for_text("Ways that were weighed")
    assert "warm at pod-" in window.text()
    keep_picture(window, "request")
    assert window.errors() == []


def test_labels_of_a_chart_are_different_times(
    harness: GatewayHarness, model: ModelSpec, window: Browser
) -> None:
    window.open(console(harness, "/models/default/wise"))
    window.run(
        "const chart = document.querySelector('#chart canvas').getContext('2d');"
        "const { fillText, clearRect } = chart; window.labels = [];"
        "chart.clearRect = (...area) => { window.labels = []; clearRect.apply(chart, area); };"
        "chart.fillText = (...text) => { window.labels.push(text[0]);"
        " fillText.apply(chart, text); };"
        "dispatchEvent(new Event('resize'))"
    )
    find = "return window.labels.filter((each) => /^\\d\\d:\\d\\d$/.test(each))"
    servers.wait_until(lambda: len(window.run(find)) > 2, what="the chart is drawn again")
    times = window.run(find)
    assert len(times) == len(set(times))


def test_the_form_sends_an_image(
    harness: GatewayHarness, model: ModelSpec, window: Browser, tmp_path: Path
) -> None:
    image = tmp_path / "dot.png"
    image.write_bytes(DOT)
    window.open(console(harness, "/models/default/wise"))
    window.type("#try input[name=image]", str(image))
    window.run("document.querySelector('#try button').click()")
    window.wait_for_text("how it was routed")
    answered = window.text()
    assert "200 in queue;dur=" in answered
    sent = base64.b64encode(DOT).decode()
    assert f'{{"instances":[{{"image_bytes":{{"b64":"{sent}"}}}}]}}' in answered.replace(" ", "")
    assert window.errors() == []


def test_a_load_shows_its_progress(
    harness: GatewayHarness, model: ModelSpec, window: Browser
) -> None:
    slow = harness.declare("slow")

    async def load(registry: Registry) -> None:
        samples = (Samples(slow.key, "load:remote", (30.0,)),)
        epoch = await registry.register_pod(PodInfo("pod-slow", "127.0.0.1:1", "n"), lease_ttl_s=60)
        report = PodReport(samples=samples)
        await registry.heartbeat("pod-slow", epoch, report, lease_ttl_s=60)
        assert await registry.claim_load("pod-slow", epoch, slow.key, ANY_COPIES) is not None

    harness.run(load)
    window.open(console(harness))
    window.wait_for_text("loading from remote")
    window.wait_for_text("of about 30.0 s")
    first = window.run("return document.querySelector('td progress').value")
    assert 0 <= first < 1
    servers.wait_until(
        lambda: window.run("return document.querySelector('td progress').value") > first,
        what="the bar moves",
    )
    label = "return document.querySelector('td progress').getAttribute('aria-label')"
    assert window.run(label) == "Load of default/slow at pod-slow"
    keep_picture(window, "loading")
    assert window.errors() == []


def test_the_keyboard_reaches_models_and_pages(
    harness: GatewayHarness, model: ModelSpec, window: Browser
) -> None:
    window.open(console(harness))
    window.wait_for_text("default/wise")
    reached = set()
    for _ in range(20):
        window.press(TAB)
        reached.add(window.run("return document.activeElement.getAttribute('href')"))
    assert {"/console/requests", "/console/autoscaler", "/console/models/default/wise"} <= reached


def test_it_says_when_the_gateway_is_gone_and_comes_back(
    redis: servers.RedisServer, window: Browser, tmp_path: Path
) -> None:
    port = servers.free_port()
    with servers.gateway(tmp_path / "1", redis_url=redis.url, pool="again", port=port) as gateway:
        window.open(f"{gateway.url}/console")
        window.wait_for_text("Overview")
    window.wait_for_text("does not answer")
    with servers.gateway(tmp_path / "2", redis_url=redis.url, pool="again", port=port):
        servers.wait_until(
            lambda: "does not answer" not in window.text(), timeout_s=60, what="connected again"
        )
    window.errors()  # the browser logs the lost connection


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize(
    "path", ["", "/models/default/wise", "/requests", "/requests/request-1", "/autoscaler", "/api"]
)
def test_axe_finds_no_violation(
    harness: GatewayHarness,
    model: ModelSpec,
    window: Browser,
    axe: str,
    path: str,
    width: int,
    scheme: str,
) -> None:
    window.development_tools(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=900,
        deviceScaleFactor=1,
        mobile=False,
    )
    window.development_tools(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
    )
    window.open(console(harness, path))
    window.run(axe)
    found = window.run("return axe.run().then((result) => result.violations)")
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []
    assert window.run("return document.documentElement.scrollWidth") <= width
    if not path:
        keep_picture(window, f"overview-{scheme}-{width}")
