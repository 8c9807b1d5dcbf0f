"""Blocking work off the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

SMALL_BODY_BYTES = 64 * 1024
"""Decoding less than this costs less than the way to a thread and back, about 0.1 ms."""

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


async def in_thread(
    threads: Executor, function: Callable[[*Arguments], Result], *arguments: *Arguments
) -> Result:
    """The result of `function(*arguments)`, run in one of `threads`."""
    return await asyncio.get_running_loop().run_in_executor(threads, function, *arguments)
