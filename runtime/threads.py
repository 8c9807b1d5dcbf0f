"""Blocking work in threads, off the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

SMALL_BODY_BYTES = 64 * 1024
"""Decoding less than this takes less time than a call in a thread, about 0.1 ms."""

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


async def in_thread(
    threads: Executor, function: Callable[[*Arguments], Result], *arguments: *Arguments
) -> Result:
    """The result of `function(*arguments)` in one of `threads`; raises errors by `as_exception`."""
    return await asyncio.get_running_loop().run_in_executor(threads, _call, function, *arguments)


def _call(function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    try:
        return function(*arguments)
    except BaseException as error:
        exception = as_exception(error)
        if exception is error:
            raise
        raise exception from error


def as_exception(error: BaseException) -> Exception:
    """An exception that a future accepts: the error itself, or a RuntimeError with its text.

    A future does not accept `StopIteration`: a task that awaits it would never resume. An error
    that is not an `Exception`, such as a panic of a library in Rust (`tokenizers`, `safetensors`),
    would end all tasks of the pod.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")
