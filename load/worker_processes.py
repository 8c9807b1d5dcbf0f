"""Worker processes that end with their parent, even after SIGKILL, and that the parent can stop.

Ctrl-C in a terminal interrupts only the parent, which then stops the workers.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from typing import Final, TypeVar

_STOPPED: Final = 1
"""Exit status of a worker that was stopped."""
_stop: Final = threading.Event()
"""In a worker of a pool with `finish`: set when its task must stop."""


Task = TypeVar("Task")
TaskResult = TypeVar("TaskResult")


@dataclass(frozen=True, slots=True)
class Workers:
    pool: ProcessPoolExecutor
    stop: Callable[[], object]
    """Stops all workers, also those that start later. A signal handler may call it."""

    def submit(self, function: Callable[[Task], TaskResult], task: Task) -> Future[TaskResult]:
        """Run a module's function in a worker, which is started if necessary."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # workers inherit it
        try:
            return self.pool.submit(function, task)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def worker_processes(count: int, *, finish: bool = False) -> Iterator[Workers]:
    """A pool of `count` processes; an exception in the body stops them.

    A stopped worker ends at once, or with `finish` as soon as its task checks `is_stopping`.
    """
    context = get_context("spawn")
    stop_signal, stopper = context.Pipe(duplex=False)
    with (
        stop_signal,
        stopper,
        ProcessPoolExecutor(
            count, mp_context=context, initializer=_initialise, initargs=(stop_signal, finish)
        ) as pool,
    ):
        try:
            yield Workers(pool, stopper.close)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stopper.close()
            raise


def is_stopping() -> bool:
    """In a worker of a pool with `finish`: True once the task must stop."""
    return _stop.is_set()


def end_with_parent() -> None:
    """End this process as soon as its parent ends, even in the middle of a task."""
    parent = parent_process()
    if parent is not None:
        _call_when_ready(parent.sentinel, partial(os._exit, _STOPPED))


def _initialise(stop_signal: Connection, finish: bool) -> None:
    end_with_parent()
    # The parent closes its end of the pipe to stop the workers.
    _call_when_ready(stop_signal, _stop.set if finish else partial(os._exit, _STOPPED))


def _call_when_ready(handle: Connection | int, function: Callable[[], object]) -> None:
    """Call the function in a thread when the handle is readable."""

    def run() -> None:
        wait([handle])
        function()

    threading.Thread(target=run, daemon=True).start()
