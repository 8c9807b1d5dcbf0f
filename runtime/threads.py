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
    """The result of `function(*arguments)`, run in one of `threads`; raises what a caller bears."""
    return await asyncio.get_running_loop().run_in_executor(
        threads, _bearable, function, *arguments
    )


def _bearable(function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    try:
        return function(*arguments)
    except BaseException as error:
        bearable = as_bearable(error)
        if bearable is error:
            raise
        raise bearable from error


def as_bearable(error: BaseException) -> Exception:
    """An error that a task can wait for: itself, or a RuntimeError that says what it was.

    A future takes no `StopIteration`: its caller would wait for ever. What is no `Exception`, as a
    panic of a library in Rust (`tokenizers`, `safetensors`), would end all tasks of the pod.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")
