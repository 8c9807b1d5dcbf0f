"""Runs through gateway, scheduler and runner: results, handles, asynchronous runs, faults."""

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from registry.redis.client import Registry
from registry.redis.reports import ArrivalHints
from tests import servers
from tests.workflows.service.harness import TWO_STEPS, WorkflowHarness, runners_of
from workflows.plan.problem import SchedulingPolicy

pytestmark = pytest.mark.slow


def test_outputs_pass_between_steps_unfetched(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow(deadline="30s")
        async def chain(values: list, text: str = "hi"):
            vector = model("embed")(features=values)["features"]
            judged = model("judge")(scores=vector)
            written = model("writer")(text)
            return [(await judged)["scores"], (await written)["text"]]
        """
    )
    assert harness.result(name, {"values": [1.5, 2.0]}) == [[1.5, 2.0], "hi"]


def test_branches_follow_fetched_outputs(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow
        async def branch(label: int):
            judged = await model("judge")(label=label)
            return "zero" if judged["label"] == 0 else await model("writer")("other")
        """
    )
    assert harness.result(name, {"label": 0}) == "zero"
    assert harness.result(name, {"label": 7}) == {"text": "other"}


def test_each_policy_runs_a_workflow(harness: WorkflowHarness) -> None:
    name = harness.deploy(TWO_STEPS)
    for policy in SchedulingPolicy:
        result = harness.result(name, {"text": "a"}, x_pilotlight_scheduling=policy)
        assert result == {"texts": "a"}


def test_a_seen_workflow_is_predicted(harness: WorkflowHarness) -> None:
    name = harness.deploy(TWO_STEPS)
    for _ in range(3):
        harness.result(name, {"text": "a"})
    document = harness.wait_ended(harness.start(name, {"text": "a"}))
    assert [step["predicted"] for step in document["steps"]] == [True, True]
    assert [each["model"] for each in document["plans"][0]["steps"]] == ["writer", "judge"]


def test_a_step_is_due_before_those_that_are_expected_after_it(harness: WorkflowHarness) -> None:
    name = harness.deploy(TWO_STEPS)
    for _ in range(3):
        harness.result(name, {"text": "a"})
    document = harness.wait_ended(
        harness.start(name, {"text": "a"}, x_pilotlight_deadline_ms="20000")
    )
    first, last = (step["due_s"] for step in document["steps"])
    assert first < last == pytest.approx(20.0, abs=0.1)


def test_planned_steps_are_announced_while_a_run_is_under_way(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow(deadline="60s")
        async def later(text: str):
            first = await model("hold-writer")(text)
            return await model("judge")(texts=first["text"])
        """
    )
    for _ in range(3):
        harness.released(harness.start(name, {"text": "a"}))
    location = harness.start(name, {"text": "a"})
    servers.wait_until(lambda: "default/judge" in _announced(harness), what="judge announced")
    harness.released(location)
    servers.wait_until(lambda: not _announced(harness), what="no step announced")


def _announced(harness: WorkflowHarness) -> list[str]:
    """Models of which schedulers announce steps, as autoscalers read them."""

    async def read() -> list[str]:
        registry = Registry(harness.pool.redis_url, harness.pool.pool)
        try:
            return [str(hint.model) for hint in await ArrivalHints(registry).read()]
        finally:
            await registry.close()

    return asyncio.run(read())


def test_an_asynchronous_run_is_read_and_cancelled(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow
        async def held(text: str):
            return await model("hold-writer")(text)
        """
    )
    location = harness.start(name, {"text": "a"})
    assert harness.status(location)["status"] == "running"
    assert harness.pool.client.delete(location).status_code == 202
    assert harness.wait_ended(location)["status"] == "cancelled"
    harness.release()


def test_a_run_that_has_ended_is_not_cancelled(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow
        async def short(text: str):
            return text
        """
    )
    location = harness.start(name, {"text": "a"})
    assert harness.wait_ended(location)["status"] == "succeeded"
    response = harness.pool.client.delete(location)
    assert (response.status_code, response.json()["outcome"]) == (200, "succeeded")
    assert harness.status(location)["status"] == "succeeded"


def test_a_key_begins_one_run(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow
        async def once(text: str):
            await model("writer")(text)
            return str(uuid4())
        """
    )
    first = harness.run(name, {"text": "a"}, idempotency_key="k1").json()
    assert harness.run(name, {"text": "a"}, idempotency_key="k1").json() == first
    assert harness.run(name, {"text": "a"}, idempotency_key="k2").json() != first


def test_a_key_used_at_the_same_time_begins_one_run(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow
        async def once():
            return str(uuid4())
        """
    )
    with ThreadPoolExecutor(8) as threads:
        runs = list(threads.map(lambda _: harness.result(name, idempotency_key="k3"), range(8)))
    assert len(set(runs)) == 1


def test_a_generator_streams(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow
        async def parts(count: int):
            for number in range(count):
                yield (await model("writer")(f"part {number}"))["text"]
        """
    )
    response = harness.run(name, {"count": 2}, accept="text/event-stream")
    events = [line for line in response.text.splitlines() if line.startswith(("event", "data"))]
    assert events[:4] == ["event: item", 'data: "part 0"', "event: item", 'data: "part 1"']
    assert events[4] == "event: end"
    assert harness.result(name, {"count": 2}) == ["part 0", "part 1"]


def test_a_run_outlives_its_runner(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow
        async def long(text: str):
            first = (await model("writer")(text))["text"]
            second = (await model("hold-writer")(first + "b"))["text"]
            return [first, second, now(), random().random()]
        """
    )
    location = harness.start(name, {"text": "a"})
    servers.wait_until(lambda: len(harness.status(location)["steps"]) == 2, what="second step")
    [pid] = runners_of(harness, name)
    os.kill(pid, signal.SIGKILL)
    servers.wait_until(lambda: harness.status(location)["resumptions"] == 1, what="resumed")
    document = harness.released(location)
    assert document["status"] == "succeeded"
    assert document["result"][:2] == ["a", "ab"]
    assert [step["model"] for step in document["steps"]] == ["writer", "hold-writer"]
