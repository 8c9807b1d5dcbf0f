"""Runs asynchronous tests."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

import uvloop

P = ParamSpec("P")


def run_async(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on the kind of event loop that the gateway uses."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test(*args, **kwargs))

    return run


@asynccontextmanager
async def running(
    run: Callable[[], Coroutine[Any, Any, None]], *, timeout_s: float = 60.0
) -> AsyncIterator[None]:
    """Run what ends by cancellation only beside the body, which may take a minute."""
    task = asyncio.create_task(run())
    try:
        async with asyncio.timeout(timeout_s):
            yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
