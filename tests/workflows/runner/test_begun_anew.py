"""A runner whose scheduler lost a run and took it over again executes the new one alone."""

import asyncio
import socket
from typing import Any

from common.frames import frame, read_frame
from workflows.runner.__main__ import IdleSelector, Runner

SOURCE = """
from pilotlight.workflow import model, workflow

@workflow
async def f(text: str):
    return (await model("writer")(text))["text"]
"""
RUN = {"type": "run", "seed": "r", "arguments": {"text": "a"}, "begun_s": 0.0}


def test_a_run_begun_anew_is_not_cancelled_by_its_old_owner() -> None:
    selector = IdleSelector()
    loop = asyncio.SelectorEventLoop(selector)
    ours, theirs = socket.socketpair()
    try:
        found = loop.run_until_complete(_exchange(Runner(selector, 10), ours, theirs))
    finally:
        loop.close()
    by_execution = {
        name: [each["type"] for each in found if each["run"] == name] for name in ("1", "2")
    }
    assert by_execution == {"1": ["step", "fetch", "cancelled"], "2": ["step", "fetch", "done"]}
    assert found[-1]["result"] == "b"


async def _exchange(
    runner: Runner, ours: socket.socket, theirs: socket.socket
) -> list[dict[str, Any]]:
    """What the runner says of a run that is lost and begun anew at once."""
    serving = asyncio.ensure_future(runner.serve(theirs, []))
    reader, writer = await asyncio.open_unix_connection(sock=ours)

    async def read() -> dict[str, Any]:
        message = await read_frame(reader)
        assert message is not None
        return message[0]

    writer.write(frame({"type": "load", "source": SOURCE}))
    assert (await read())["type"] == "loaded"
    writer.write(frame({**RUN, "run": "1"}))
    found = [await read() for _ in range(2)]
    writer.write(frame({"type": "cancel", "run": "1"}) + frame({**RUN, "run": "2"}))
    found += [await read() for _ in range(3)]
    outputs = {"type": "outputs", "run": "2", "step": 0, "outputs": {"text": "b"}}
    writer.write(frame(outputs))
    found.append(await read())
    writer.close()
    await writer.wait_closed()
    await serving
    return found
