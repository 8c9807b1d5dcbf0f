"""Runs a workflow's function as its runner does; the test answers in place of a scheduler."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson

from common.frames import LENGTHS
from workflows.runner.execution import ExecutingRun, Workflow


def messages_of(
    workflow: Workflow | Any,
    on_message: Callable[[ExecutingRun, dict[str, Any]], object] = lambda *_: None,
    *,
    identity: str = "run",
    max_steps: int = 50,
    **arguments: Any,
) -> list[dict[str, Any]]:
    """All that a workflow, or a function as one, sends; `on_message` is called with each."""
    sent: list[dict[str, Any]] = []

    async def run() -> None:
        def on_frame(frame: bytes) -> None:
            sent.append(orjson.loads(frame[LENGTHS.size :]))
            on_message(executing, sent[-1])

        executing = ExecutingRun("1", identity, 0.0, on_frame, max_steps=max_steps)
        found = workflow if isinstance(workflow, Workflow) else Workflow(workflow)
        await executing.start(found, arguments)

    asyncio.run(run())
    return sent
