"""Blocking work in threads, off the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

SMALL_BODY_BYTES = 64 * 1024
"""Decoding less than this takes less time than a call in a thread, about 0.1 ms."""
QUICK_BYTES = 1024
"""Converting no more, body or outputs, takes about as long as a call in a thread, at worst a few
milliseconds: the event loop does it for a request alone, if its processor `is_quick`."""

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
Parameters = ParamSpec("Parameters")


async def in_thread(
    threads: Executor, function: Callable[[*Arguments], Result], *arguments: *Arguments
) -> Result:
    """The result of `function(*arguments)` in one of `threads`; raises errors by `as_exception`.

    Half the CPU time of `run_in_executor`, which chains two futures (docs/runtime.md).
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()
    waiting = [future]
    call = threads.submit(_call, loop, waiting, function, arguments)
    call.add_done_callback(partial(_end_unrun, loop, waiting))
    try:
        return await future
    except asyncio.CancelledError:
        call.cancel()  # unless it has begun
        raise
    finally:
        del call, future  # they keep the error, whose traceback has this frame


def _call(
    loop: asyncio.AbstractEventLoop,
    waiting: list[asyncio.Future[Result]],
    function: Callable[..., Result],
    arguments: tuple[Any, ...],
) -> None:
    """`waiting`: the caller's future alone, taken out of what frames of a traceback keep."""
    future = waiting.pop()
    try:
        result = function(*arguments)
    except BaseException as error:
        exception = as_exception(error)
        if exception is not error:
            exception.__cause__ = error
        _resolve(loop, future, future.set_exception, exception)
        del exception, future  # the error's traceback has this frame
    else:
        _resolve(loop, future, future.set_result, result)


def _end_unrun(
    loop: asyncio.AbstractEventLoop, waiting: list[asyncio.Future[Any]], call: Future[None]
) -> None:
    """Where the executor ended the call before it began: it shut down, or a load was cancelled."""
    if not waiting:
        return  # it began
    future = waiting.pop()
    if call.cancelled():
        _resolve(loop, future, future.cancel, None)
    elif (error := call.exception()) is not None:
        _resolve(loop, future, future.set_exception, as_exception(error))


def _resolve(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    resolve: Callable[[Any], object],
    outcome: object,
) -> None:
    def resolve_if_waited_for() -> None:
        if not future.done():
            resolve(outcome)

    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(resolve_if_waited_for)


def as_exception(error: BaseException) -> Exception:
    """An exception that a future accepts: the error itself, or a RuntimeError with its text.

    A future does not accept `StopIteration`: a task that awaits it would never resume. An error
    that is not an `Exception`, such as a panic of a library in Rust (`tokenizers`, `safetensors`),
    would end all tasks of the pod.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


class RequestThreads(ThreadPoolExecutor):
    """The threads that decode, preprocess and postprocess requests.

    Knows how long each call has run: no thread can be ended, but a pod can.
    """

    def __init__(self, threads: int, timeout_s: float) -> None:
        """`timeout_s`: time after which a call counts as hung."""
        super().__init__(threads, "request")
        self._threads_total = threads
        self._timeout_s = timeout_s
        self._begun_s: dict[int, float] = {}
        """By thread, for the calls that run; each thread changes its own entry only."""

    def submit(
        self,
        function: Callable[Parameters, Result],
        /,
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Future[Result]:
        return super().submit(self._run, function, *arguments, **named)

    def _run(
        self,
        function: Callable[Parameters, Result],
        /,
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        thread = threading.get_ident()
        self._begun_s[thread] = time.monotonic()
        try:
            return function(*arguments, **named)
        finally:
            del self._begun_s[thread]

    @property
    def are_stuck(self) -> bool:
        """Whether every thread is in a call that hangs, so that no request can be served."""
        begun_s = list(self._begun_s.values())
        if len(begun_s) < self._threads_total:
            return False
        return time.monotonic() - max(begun_s) > self._timeout_s
