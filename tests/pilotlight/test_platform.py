"""The whole platform, as a user runs it: real processes, real models, plain HTTP."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pilotlight.sample_models.samples import make_samples
from pilotlight.state_dir import StateDir
from tests import servers
from tests.pilotlight.conftest import SAMPLES, Ran, run_cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

POD_COUNT = 8
SENTENCE = "quick brown fox jumps over"
MODEL = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
  annotations:
    pilotlight.io/policy: {policy}
spec:
  predictor:
    model:
      modelFormat: {{name: huggingface}}
      storageUri: {uri}
"""


@dataclass(frozen=True)
class Running:
    """A detached platform."""

    home: Path
    facts: dict[str, Any]

    @property
    def url(self) -> str:
        return str(self.facts["gateway"])

    def cli(self, *arguments: str) -> Ran:
        """Run a command against it."""
        return run_cli(*arguments, "--home", str(self.home))

    def get(self, what: str) -> list[dict[str, Any]]:
        """`get models` or `get pods` as JSON."""
        document = self.cli("get", what, "--json").document
        assert isinstance(document, list)
        return document

    def apply(self, folder: Path, name: str, *, policy: str, uri: str) -> None:
        """Declare one model, and return when the gateway knows it."""
        path = folder / f"{name}.yaml"
        path.write_text(MODEL.format(name=name, policy=policy, uri=uri))
        assert self.cli("apply", "-f", str(path)).status == 0
        with self.client() as client:
            servers.wait_until(
                lambda: client.get(f"/v2/models/{name}").is_success, what=f"{name} known"
            )

    def client(self) -> httpx.Client:
        """A plain HTTP client of its gateway."""
        return httpx.Client(base_url=self.url, trust_env=False, timeout=60)

    def loads_total(self) -> int:
        """Loads that all pods have completed."""
        return sum(pod["loads_total"] for pod in self.get("pods"))


def _up(home: Path, *more: str) -> Running:
    more = ("--no-autoscaler", *more)  # these tests count cold starts
    ran = run_cli("up", "--detach", "--json", "--port", "0", "--home", str(home), *more)
    assert ran.status == 0, ran.err
    return Running(home, ran.document)


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample models, made once."""
    folder = tmp_path_factory.mktemp("objects")
    make_samples(folder, lambda *_: None)
    return folder


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, objects: Path) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("home")
    running = _up(home, "--pods", str(POD_COUNT), "--objects", str(objects))
    try:
        assert running.cli("apply", "-f", str(SAMPLES)).status == 0
        with running.client() as client:
            servers.wait_until(lambda: client.get("/v2/models/translate").is_success)
        yield running
    finally:
        running.cli("down")


def test_prints_the_gateways_address_and_the_pods(platform: Running) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", platform.url)
    assert len(platform.facts["pods"]) == POD_COUNT


def test_starting_twice_says_what_is_running(platform: Running) -> None:
    again = platform.cli("up", "--detach", "--json", "--port", "0")
    assert again.status == 2
    assert f"pid {platform.facts['pid']}" in again.document["error"]
    assert platform.url in again.document["error"]


def test_answers_v1_and_v2_with_the_designs_headers(platform: Running) -> None:
    v2 = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [SENTENCE]}]}
    with platform.client() as client:
        answers = [
            client.post("/v1/models/embed:predict", json={"instances": [SENTENCE]}),
            client.post("/v2/models/embed/infer", json=v2),
            client.post(
                "/serving/default/embed/v1/models/embed:predict", json={"instances": ["x"]}
            ),
            client.post(
                "/v2/models/embed/infer", json=v2, headers={"host": "embed.default.example.com"}
            ),
        ]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        for header in ("pod", "policy", "reason", "start"):
            assert answer.headers[f"x-pilotlight-{header}"]
        assert answer.headers["x-request-id"]
        assert "infer;dur=" in answer.headers["server-timing"]
    assert len(answers[0].json()["predictions"][0]) == 384
    assert answers[1].json()["model_name"] == "embed"
    assert answers[1].json()["outputs"][0]["shape"] == [1, 384]


def test_models_and_pods_show_the_same_tiers(platform: Running) -> None:
    with platform.client() as client:
        client.post("/v1/models/embed:predict", json={"instances": ["x"]}).raise_for_status()
    models, pods = platform.get("models"), platform.get("pods")
    by_model = {
        (each["namespace"] + "/" + each["name"], pod): tier
        for each in models
        for pod, tier in each["tiers"].items()
    }
    by_pod = {(name, pod["name"]): tier for pod in pods for name, tier in pod["models"].items()}
    assert by_model == by_pod
    assert "device" in by_model.values()
    assert all(each["ready"] for each in models)


def test_ten_sequential_requests_start_cold_once_under_colocation(
    platform: Running, tmp_path: Path
) -> None:
    platform.apply(tmp_path, "ten", policy="colocation", uri="s3://models/all-minilm-l6-v2")
    with platform.client() as client:
        starts = [
            client.post("/v1/models/ten:predict", json={"instances": [SENTENCE]})
            .raise_for_status()
            .headers["x-pilotlight-start"]
            for _ in range(10)
        ]
    assert starts == ["remote"] + ["warm"] * 9


def test_fifty_concurrent_first_requests_load_once_under_queueing(
    platform: Running, tmp_path: Path
) -> None:
    platform.apply(
        tmp_path, "fifty", policy="colocation-queueing", uri="s3://models/all-minilm-l6-v2"
    )
    loads_before = platform.loads_total()

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=platform.url, trust_env=False, timeout=60) as client:
            requests = [
                client.post("/v1/models/fifty:predict", json={"instances": [f"text {index}"]})
                for index in range(50)
            ]
            return await asyncio.gather(*requests)

    answers = asyncio.run(ask())
    assert [answer.status_code for answer in answers] == [200] * 50
    servers.wait_until(lambda: platform.loads_total() > loads_before, what="load counted")
    assert platform.loads_total() == loads_before + 1


def test_explains_where_a_request_went(platform: Running) -> None:
    asked = platform.cli("predict", "embed", "a text", "--json")
    assert asked.status == 0
    headers = asked.document["headers"]
    explained = platform.cli("explain", headers["x-request-id"], "--json").document
    assert explained["request_id"] == headers["x-request-id"]
    assert explained["model"] == "default/embed"
    assert platform.cli("explain", "no-such-request").status == 1


def test_predicts_in_both_protocols_and_by_policy(platform: Running) -> None:
    for more in (["--v1"], ["--v2"], ["--policy", "random"]):
        assert platform.cli("predict", "default/embed", "a text", *more).status == 0
    refused = platform.cli("predict", "absent", "a text")
    assert refused.status == 1
    assert "404" in refused.err


def test_a_storage_uri_that_does_not_exist_is_told_and_hurts_nobody(
    platform: Running, tmp_path: Path
) -> None:
    platform.apply(tmp_path, "nowhere", policy="auto", uri="s3://models/nowhere")
    failed = platform.cli("predict", "nowhere", "a text")
    assert failed.status == 1
    assert "503" in failed.err
    [shown] = platform.cli("get", "models", "nowhere", "--json").document
    assert shown["ready"] is False
    assert "s3://models/nowhere" in shown["failure"]["message"]
    assert platform.cli("predict", "embed", "a text").status == 0
    assert platform.cli("delete", "nowhere").status == 0


def test_a_killed_pod_is_started_again_and_requests_go_on(platform: Running) -> None:
    before = {pod["name"]: pod["pid"] for pod in platform.get("pods")}
    with platform.client() as client:
        answer = client.post("/v1/models/embed:predict", json={"instances": ["x"]})
        victim = answer.raise_for_status().headers["x-pilotlight-pod"]
        os.kill(before[victim], signal.SIGKILL)
        client.post("/v1/models/embed:predict", json={"instances": ["x"]}).raise_for_status()

    def is_back() -> bool:
        after = {pod["name"]: pod["pid"] for pod in platform.get("pods")}
        return after.keys() == before.keys() and after[victim] != before[victim]

    servers.wait_until(is_back, what=f"{victim} back")


def test_a_killed_gateway_is_started_again_at_its_address(platform: Running) -> None:
    gateways = [pid for pid in pids_of(platform) if " -m gateway " in command_of(pid)]
    assert gateways
    os.kill(gateways[0], signal.SIGKILL)
    servers.wait_until(lambda: not servers.is_alive(gateways[0]))
    with platform.client() as client:
        servers.wait_until(lambda: client.get("/readyz").status_code == 200, what="gateway back")
        client.post("/v1/models/embed:predict", json={"instances": ["x"]}).raise_for_status()


def test_a_killed_registry_comes_back_with_its_models(platform: Running) -> None:
    models = [each["name"] for each in platform.get("models")]
    with platform.client() as client:
        client.post("/v1/models/embed:predict", json={"instances": ["x"]}).raise_for_status()
        [redis] = [pid for pid in pids_of(platform) if "redis-server" in command_of(pid)]
        os.kill(redis, signal.SIGKILL)
        answer = client.post("/v1/models/embed:predict", json={"instances": ["x"]})
        assert answer.headers["x-pilotlight-start"] == "warm"

    def is_healed() -> bool:
        pods = platform.cli("get", "pods", "--json")
        return pods.status == 0 and len(pods.document) == POD_COUNT

    servers.wait_until(is_healed, what="pods registered again")
    assert [each["name"] for each in platform.get("models")] == models


def test_a_killed_forkserver_comes_back_with_all_pods(platform: Running) -> None:
    before = {pod["name"]: pod["pid"] for pod in platform.get("pods")}
    [forkserver] = [
        pid
        for pid in pids_of(platform)
        if "runtime.forkserver" in command_of(pid) and pid not in before.values()
    ]
    os.kill(forkserver, signal.SIGKILL)
    servers.wait_until(lambda: not any(servers.is_alive(pid) for pid in before.values()))

    def is_back() -> bool:
        after = {pod["name"]: pod["pid"] for pod in platform.get("pods")}
        return after.keys() == before.keys() and not after.items() & before.items()

    servers.wait_until(is_back, what="pods back")
    assert platform.cli("predict", "embed", "a text").status == 0


def command_of(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode(errors="replace")
    return ""


def pids_of(running: Running) -> set[int]:
    """The supervisor and all that descend from it."""
    parents = {}
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError), open(f"/proc/{int(entry)}/stat") as stat:
            parents[int(entry)] = int(stat.read().rpartition(")")[2].split()[1])
    found = {int(running.facts["pid"])}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _assert_gone(running: Running, pids: set[int]) -> None:
    servers.wait_until(
        lambda: not any(servers.is_alive(pid) for pid in pids), what="processes gone"
    )
    assert not StateDir(running.home).is_locked()
    with pytest.raises(httpx.ConnectError):
        httpx.get(running.url, trust_env=False)


@pytest.fixture
def small(tmp_path: Path, objects: Path) -> Iterator[Running]:
    """A platform of two pods that the test ends."""
    running = _up(tmp_path / "home", "--pods", "2", "--objects", str(objects))
    try:
        yield running
    finally:
        running.cli("down")


def test_down_leaves_nothing_behind(small: Running) -> None:
    pids = pids_of(small)
    assert len(pids) >= 7  # supervisor, redis, object store, gateway, forkserver, two pods
    stopped = small.cli("down", "--json")
    assert stopped.document["stopped"] is True
    _assert_gone(small, pids)
    assert sorted(path.name for path in small.home.iterdir()) == ["lock", "logs", "sums"]


def test_a_killed_supervisor_leaves_nothing_behind_and_nothing_in_the_way(small: Running) -> None:
    pids = pids_of(small)
    os.kill(small.facts["pid"], signal.SIGKILL)
    _assert_gone(small, pids)
    again = _up(small.home, "--pods", "2", "--no-s3")
    assert again.facts["pid"] != small.facts["pid"]
    assert len(again.get("pods")) == 2


def test_a_signal_while_it_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    arguments = ["up", "--port", "0", "--no-s3", "--home", str(tmp_path / "home")]
    with (
        (tmp_path / "err").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "pilotlight", *arguments],
            cwd=servers.REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        ) as up,
    ):
        running = Running(tmp_path / "home", {"pid": up.pid, "gateway": "http://127.0.0.1:1"})
        servers.wait_until(
            lambda: any("runtime.forkserver" in command_of(pid) for pid in pids_of(running))
        )
        pids = pids_of(running)
        up.send_signal(signal.SIGTERM)
        assert up.wait(120) == 128 + signal.SIGTERM, (tmp_path / "err").read_text()
    _assert_gone(running, pids - {up.pid})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_foreground_platform_in_order(
    tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(MODEL.format(name="m", policy="auto", uri="s3://models/t5-small"))
    arguments = ["up", "--pods", "2", "--port", "0", "--no-s3", "--json", "-f", str(path)]
    with (
        (tmp_path / "err").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "pilotlight", *arguments, "--home", str(tmp_path / "home")],
            cwd=servers.REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        ) as up,
    ):
        home = StateDir(tmp_path / "home")
        servers.wait_until(
            lambda: (state := home.read_state()) is not None and state.phase == "ready",
            what="ready",
        )
        state = home.require_ready()
        running = Running(home.root, {"pid": up.pid, "gateway": state.gateway})
        pids = pids_of(running)
        servers.wait_until(lambda: len(running.get("models")) == 1, what="model declared")
        up.send_signal(number)
        assert up.wait(120) == 0, (tmp_path / "err").read_text()
    _assert_gone(running, pids - {up.pid})
    shutil.rmtree(home.root)
