"""Responses to a step that a run waits for or fails by."""

import asyncio

import pytest

from registry.domain.model import ModelName
from tests.workflows.service.alone import new_steps
from workflows.errors import StepLost, WorkflowError
from workflows.run import Run, RunStep

BODY = b'{"error": "default/writer needs 5 bytes; models in use occupy the pod\'s memory"}'
NO_MEMORY = "x-pilotlight-not-executed: no-memory"
WRITER = ModelName("default", "writer")


def respond(*headers: str) -> BaseException:
    """The error of a step that gets a 503 with these headers over HTTP."""
    head = "\r\n".join(["HTTP/1.1 503 Unavailable", f"content-length: {len(BODY)}", *headers])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head.encode() + b"\r\n\r\n" + BODY)
        await writer.drain()
        writer.close()

    async def ask() -> BaseException:
        step = RunStep(0, WRITER, {}, 0.0)
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with asyncio.TaskGroup() as group:
                steps = new_steps(group, f"http://127.0.0.1:{port}")
                with pytest.raises((WorkflowError, StepLost)) as failure:
                    await steps.attempt(Run("run", WRITER, {}, 0.0, 5.0, "auto"), step, [])
                steps.close()
            return failure.value

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param((NO_MEMORY, "retry-after: 1"), id="memory-that-other-models-use"),
        pytest.param(("x-pilotlight-not-executed: step-queue",), id="a-place-in-a-step-queue"),
    ],
)
def test_a_step_waits_for_what_others_hold(headers: tuple[str, ...]) -> None:
    failure = respond(*headers)
    assert isinstance(failure, StepLost)
    assert not failure.was_sent
    assert "occupy the pod's memory" in str(failure)


def test_a_step_that_lost_pods_by_chance_is_sent_again_after_a_pause() -> None:
    failure = respond("x-pilotlight-reason: lost-pods", "retry-after: 5")
    assert isinstance(failure, StepLost)
    assert failure.was_sent
    assert failure.pause_s == 5


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param((NO_MEMORY,), id="model-too-large-for-any-pod"),
        pytest.param(("retry-after: 1",), id="load-failed"),
        pytest.param(
            ("x-pilotlight-reason: lost-pods", "retry-after: 300"), id="pods-lost-by-the-step"
        ),
    ],
)
def test_other_refusals_fail_the_step(headers: tuple[str, ...]) -> None:
    failure = respond(*headers)
    assert isinstance(failure, WorkflowError)
    assert failure.status == 503
