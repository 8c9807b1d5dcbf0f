"""The autoscaler on a whole platform: to zero and back, and models that are warm ahead of time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pyarrow.parquet as pq
import pytest

from tests import servers
from tests.pilotlight.conftest import run_cli
from tests.pilotlight.test_platform import Running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

PERIOD_S = 16
BURST = 4
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two pods at most, none while nobody asks; one tiny model."""
    folder = tmp_path_factory.mktemp("platform")
    objects = folder / "objects"
    (objects / "models").mkdir(parents=True)
    assert run_cli("make-model", "tiny-t5", str(objects / "models" / "tiny-t5")).status == 0
    ran = run_cli(
        "up", "--detach", "--json", "--port", "0", "--home", str(folder / "home"),
        "--objects", str(objects), "--pods", "2", "--min-pods", "0",
        "--pod-idle", "4", "--pod-stable", "2",
    )  # fmt: skip
    assert ran.status == 0, ran.err
    running = Running(folder / "home", ran.document)
    try:
        running.apply(folder, "tiny", policy="auto", uri="s3://models/tiny-t5")
        yield running
    finally:
        assert running.cli("down").status == 0


def _model(platform: Running) -> dict[str, Any]:
    [document] = platform.get("models")
    return document


def _ask(platform: Running) -> httpx.Response:
    with platform.client() as client:
        return client.post("/v1/models/tiny:predict", json={"instances": ["hello"]})


def test_to_zero_and_back_with_one_pod_and_one_load(platform: Running) -> None:
    servers.wait_until(lambda: not platform.get("pods"), timeout_s=LIMIT_S, what="no pods")
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: _ask(platform), range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4
    [pod] = platform.get("pods")
    assert pod["loads_total"] == 1
    assert {answer.headers["x-pilotlight-pod"] for answer in answers} == {pod["name"]}
    history = platform.cli("autoscaler", "--json").document
    woken = [each for each in history if each["verb"] == "scale" and each["reason"] == "waiting"]
    assert len(woken) == 1
    assert woken[0]["words"].startswith("1 pods")
    servers.wait_until(lambda: not platform.get("pods"), timeout_s=LIMIT_S, what="none again")


def test_after_two_periods_no_request_of_the_third_is_cold(
    platform: Running, tmp_path: Path
) -> None:
    trace, record = tmp_path / "trace.csv", tmp_path / "run.parquet"
    rows = [
        f"{PERIOD_S * period + 0.4 * place:.1f},tiny"
        for period in range(3)
        for place in range(BURST)
    ]
    trace.write_text("at_s,model\n" + "\n".join(rows) + "\n")

    def answered() -> int:
        text = httpx.get(f"{platform.url}/metrics", trust_env=False).text
        return sum(
            int(float(line.rpartition(" ")[2]))
            for line in text.splitlines()
            if line.startswith("pilotlight_gateway_requests_total{") and 'code="200"' in line
        )

    before = answered()
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(
            platform.cli, "load", "run", "--trace", str(trace), "-o", str(record), "--json"
        )
        servers.wait_until(
            lambda: answered() == before + 2 * BURST, timeout_s=LIMIT_S, what="two periods answered"
        )
        _take_away(platform)
        servers.wait_until(lambda: _model(platform)["warm_on"], timeout_s=LIMIT_S, what="preloaded")
        is_ahead = answered() == before + 2 * BURST
        action = _model(platform)["autoscaler"]
        assert run.result().status == 0, run.result().err
    assert is_ahead, "the model was warm before the third period began"
    assert (action["verb"], action["reason"]) == ("load", "forecast")
    assert "P(arrival" in action["words"]
    starts = pq.read_table(record, columns=["scheduled_s", "start", "status"]).to_pylist()
    third = [each for each in starts if each["scheduled_s"] >= 2 * PERIOD_S - 0.01]
    assert [(each["status"], each["start"]) for each in third] == [(200, "warm")] * BURST


def _take_away(platform: Running) -> None:
    """Unload the model everywhere, as a pod does that needs the memory for another one."""
    for pod in platform.get("pods"):
        url = f"http://{pod['address']}/v2/repository/models/default~tiny/unload"
        assert httpx.post(url, json={}, trust_env=False, timeout=60).status_code == 200
