"""What is done with outputs that are too large, missing, or wanted by nobody."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from common.frames import frame
from common.pod_secret import PodSecret
from registry.domain.model import ModelName, ModelRecord, ModelSpec
from registry.domain.pod import PodInfo
from registry.domain.pod_state import PodState
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from registry.redis.workflow_log import WorkflowLog
from tests import servers
from tests.workflows.service.alone import new_steps
from workflows.journal import Journal
from workflows.metrics import SchedulerMetrics
from workflows.plan.planner import Planner
from workflows.preloads import Preloads
from workflows.run import Run, RunStatus, RunStep, StepState
from workflows.run_control import RunControl
from workflows.values import StoredTensor, text_tensor

WRITER = ModelName("default", "writer")
MAX_FRAME_BYTES = 1000


@dataclass
class Listener:
    """Accepts requests and answers none; ends connections of those that free outputs."""

    address: str = ""
    requests: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append((await reader.readuntil(b"\r\n")).decode())
            if not self.requests[-1].startswith("DELETE"):
                await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    listener = Listener()
    async with await asyncio.start_server(listener.serve, "127.0.0.1", 0) as server:
        listener.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield listener


@dataclass
class Controlled:
    """A run whose messages to its runner are collected."""

    control: RunControl
    run: Run
    sent: list[Mapping[str, Any]]


@asynccontextmanager
async def controlled(redis: servers.RedisServer) -> AsyncIterator[tuple[Controlled, Listener]]:
    """A run with a gateway, which is pod-a as well."""
    registry = Registry(redis.url, "control")
    watch, metrics, sent = ClusterWatch(registry), SchedulerMetrics(), list[Mapping[str, Any]]()
    async with listening() as listener, asyncio.TaskGroup() as group:
        watch.state.models[WRITER] = ModelRecord(ModelSpec(WRITER, "s3://m/writer"))
        watch.state.pods["pod-a"] = PodState(PodInfo("pod-a", listener.address, "n"))
        preloads = Preloads(group, PodSecret(), metrics, watch.registry_now_s)
        planner = Planner(watch, preloads, metrics)
        steps = new_steps(group, f"http://{listener.address}", planner)

        def send(_: Run, message: Mapping[str, Any]) -> None:
            frame(message, max_bytes=MAX_FRAME_BYTES)
            sent.append(message)

        journal = Journal(WorkflowLog(registry), lambda _: None)
        control = RunControl(
            group, steps, planner, journal, metrics, send=send, on_end=lambda _: None
        )
        deadline_s = planner.now_s() + 60.0
        run = Run("r", ModelName("default", "w"), {}, planner.now_s(), deadline_s, "greedy")
        yield Controlled(control, run, sent), listener
        control.cancel(run)
        await _until(lambda: run.status is not RunStatus.RUNNING)
        steps.close()
        preloads.close()
    await registry.close()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what other tasks do
            await asyncio.sleep(0.01)


def _call(number: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "step", "step": number, "model": "writer", "inputs": inputs}


async def test_a_text_too_large_for_a_message_fails_its_iteration(
    redis: servers.RedisServer,
) -> None:
    async with controlled(redis) as (it, _):
        step = RunStep(0, WRITER, {}, 0.0, state=StepState.DONE)
        step.outputs = {"text": text_tensor("text", "x" * 2 * MAX_FRAME_BYTES)}
        it.run.steps.append(step)
        it.control.on_message(it.run, {"type": "stream", "step": 0})
        assert it.sent[0]["type"] == "failure"
        assert it.sent[0]["error"]["reason"] == "bad-output"


async def test_a_broken_text_fails_its_iteration(redis: servers.RedisServer) -> None:
    async with controlled(redis) as (it, _):
        step = RunStep(0, WRITER, {}, 0.0, state=StepState.DONE)
        step.outputs = {"text": StoredTensor("text", "BYTES", (1,), b"\x05\x00\x00\x00ab")}
        it.run.steps.append(step)
        it.control.on_message(it.run, {"type": "stream", "step": 0})
        assert it.sent[0]["type"] == "failure"
        assert it.sent[0]["error"]["reason"] == "bad-output"


def _nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth - 1):
        found = [found]
    return found


@pytest.mark.parametrize(
    "message",
    [
        {"type": "item", "value": _nested(253)},
        {"type": "done", "result": _nested(1000)},
        {"type": "failed", "error": {"message": _nested(1000), "reason": "a", "status": 422}},
        {"type": "step", "step": 0, "model": "writer", "inputs": {"a": {"value": _nested(1000)}}},
    ],
)
async def test_a_message_that_no_record_of_the_run_can_hold_ends_only_it(
    redis: servers.RedisServer, message: dict[str, Any]
) -> None:
    async with controlled(redis) as (it, _):
        it.control.on_message(it.run, message)
        assert it.run.error is not None
        assert it.run.error["reason"] == "runner-failed"
        orjson.dumps(it.run.outcome())


async def test_a_step_without_outputs_is_no_input(redis: servers.RedisServer) -> None:
    async with controlled(redis) as (it, _):
        it.run.steps.append(RunStep(0, WRITER, {}, 0.0, state=StepState.DONE, outputs={}))
        it.run.called = 1
        it.control.on_message(it.run, _call(1, {"text": {"step": 0, "output": None}}))
        await _until(lambda: it.run.steps[1].is_over)
        error = it.run.steps[1].error
        assert error is not None
        assert re.fullmatch("input 'text' takes a step that has no outputs", error["message"])
        assert error["reason"] == "unknown-output"


async def test_what_a_step_under_way_may_leave_at_its_pod_is_freed_with_its_run(
    redis: servers.RedisServer,
) -> None:
    async with controlled(redis) as (it, pod):
        it.control.on_message(it.run, _call(0, {"text": {"value": "a"}}))
        await _until(lambda: bool(pod.requests))
        it.control.cancel(it.run)
        await _until(lambda: len(pod.requests) == 2)
        assert pod.requests[1].startswith("DELETE /v2/tensors/default/r ")
