"""What if and the autoscaler's plan: the pages that run commands, for operators only."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from gateway.console.command_runs import CommandRuns, Job, Step
from gateway.console.what_if import Change, compared, replayed, what_if_job
from gateway.telemetry.recent_requests import RecentRequest, RecentRequests
from gateway.telemetry.stage_timings import StageTimings
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelRecord, ModelSpec
from tests import servers
from tests.gateway.asynchronous import run_async, running

if TYPE_CHECKING:
    import httpx

    from registry.redis.watch import ClusterWatch
    from tests.gateway.gateway_harness import GatewayHarness


PATIENCE_S = 300.0
"""Commands import much, at a low priority."""


class Registry:
    """Where a pool is."""

    url, pool = "redis://user:secret@elsewhere", "gpu"


class Copy:
    """A gateway's copy of a cluster with one model."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.state = ClusterState()
        spec = ModelSpec(ModelName("red", "a"), "file:///a")
        self.state.models[spec.name] = ModelRecord(spec)


def watch() -> ClusterWatch:
    copy: Any = Copy()
    found: ClusterWatch = copy
    return found


def request(at_s: float, *, model: str = "red/a", start: str = "warm", ms: float = 100.0) -> Any:
    timings = StageTimings(ms / 2, ms / 2, 0.0, 0.0, 0.0, 0.0)
    return RecentRequest(
        f"at-{at_s}", at_s, model, "auto", "warm", start, 200, "pod-a", timings, None
    )


def recent(*requests: RecentRequest) -> RecentRequests:
    kept = RecentRequests()
    for each in requests:
        kept.add(each)
    return kept


def test_requests_of_ten_minutes_to_existing_models_are_replayed_by_arrival() -> None:
    kept = recent(
        request(100.0), request(900.0, model="red/gone"), request(901.0, ms=5_000), request(900.5)
    )
    found = replayed(kept, watch(), 1000.0)
    assert [each.at_s for each in found] == [901.0, 900.5]
    job = what_if_job(found, watch(), Change(policy="colocation", more_pods=-1))
    lines = job.files["trace.csv"].decode().splitlines()
    assert lines == ["at_s,tenant,model", "0.000000,red,a", "4.400000,red,a"]
    assert job.steps[0].arguments == job.steps[1].arguments[:-4]
    assert job.steps[1].arguments[-4:] == ("--policy", "colocation", "--more-pods", "-1")
    arguments = [text for step in job.steps for text in step.arguments]
    assert not any("secret" in text for text in arguments)
    assert job.environment["PILOTLIGHT_REDIS_URL"] == Registry.url


def test_what_happened_stands_beside_the_simulations() -> None:
    job = what_if_job([request(1.0), request(2.0, start="disk", ms=900)], watch(), Change())
    run = {
        "requests": 2, "ok": 2, "cold_starts": 0, "loads": {"disk": 1, "remote": 2},
        "latency_s": {"mean": 0.1, "p50": 0.1, "p99": 0.2},
    }  # fmt: skip
    job.results.append({"runs": [run]})
    happened, simulated = compared(job)
    assert (happened["cold"], happened["p50_s"], happened["p99_s"]) == (1, 0.9, 0.9)
    assert (simulated["name"], simulated["loads"]) == ("simulated, as it is", 3)


@pytest.mark.slow
@run_async
async def test_a_command_that_fails_leaves_its_message() -> None:
    job = Job("t", [Step("wrong", ("simulate", "--no-such-option"))], {})
    runs = CommandRuns(is_enabled=True)
    async with running(runs.run, timeout_s=PATIENCE_S):
        assert runs.start(job)
        assert not runs.start(Job("other", [], {}))
        await job.ended.wait()
    assert "no-such-option" in job.error
    assert job.progress(time.time())["running"] is False


@pytest.mark.slow
@run_async
async def test_a_cancelled_job_ends_its_process() -> None:
    """The command waits for a Redis that accepts connections and never answers."""
    began, gone = asyncio.Event(), asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began.set()
        await reader.read(-1)
        writer.close()
        gone.set()

    server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    runs = CommandRuns(is_enabled=True)
    job = Job("t", [Step("waits", ("autoscaler",))], {"PILOTLIGHT_REDIS_URL": url})
    async with running(runs.run, timeout_s=PATIENCE_S), server:
        runs.start(job)
        await began.wait()
        assert job.progress(time.time())["step"] == "waits"
        assert not runs.cancel("other")
        assert runs.cancel("t")
        await job.ended.wait()
        await gone.wait()
    assert job.error == "cancelled"
    assert not runs.cancel("t")


def test_bad_input_and_other_sites_are_refused(shared: GatewayHarness) -> None:
    url = f"{shared.gateway.url}/console"
    refused = {
        "/what-if?policy=fastest": "policy must be one of own, ",
        "/what-if?pods=100": "pods must be one of -8, ",
        "/what-if?loading=x": "loading must be one of predictive, ",
        "/autoscaler?loading=none": "loading must be one of predictive, ",
    }
    for path, message in refused.items():
        response = shared.client.post(url + path)
        assert response.status_code == 400
        assert response.json()["error"].startswith(message)
    foreign = shared.client.post(f"{url}/what-if", headers={"origin": "http://elsewhere.example"})
    assert foreign.status_code == 403
    assert shared.client.get(f"{url}/jobs/absent").status_code == 404


@pytest.mark.slow
def test_the_last_requests_are_simulated_with_a_change(harness: GatewayHarness) -> None:
    spec, _ = harness.start_warm_pod()
    url = f"{harness.gateway.url}/console"
    assert harness.client.post(f"{url}/what-if").status_code == 409  # nothing to replay
    for _ in range(3):
        harness.predict(spec)
    started = harness.client.post(f"{url}/what-if?policy=colocation&pods=1")
    assert started.status_code == 202, started.text
    assert harness.client.post(f"{url}/autoscaler").status_code == 409
    wait_ended(harness.client, f"{url}/jobs/what-if")
    text = harness.client.get(f"{url}/what-if").text
    assert "simulated, with the change" in text, text
    assert "Policy colocation, +1 pods" in text


@pytest.mark.slow
def test_the_plan_of_the_autoscaler_is_shown(harness: GatewayHarness) -> None:
    spec, _ = harness.start_warm_pod()
    url = f"{harness.gateway.url}/console"
    assert harness.client.post(f"{url}/autoscaler?loading=predictive").status_code == 202
    wait_ended(harness.client, f"{url}/jobs/plan")
    text = harness.client.get(f"{url}/autoscaler").text
    assert "Actions that are due, by predictive" in text, text
    assert str(spec.name) in text


def wait_ended(client: httpx.Client, url: str) -> None:
    servers.wait_until(
        lambda: not client.get(url).json()["running"], timeout_s=300, what="the job has ended"
    )
