"""Worker processes: they end with whoever started them, even by SIGKILL, and stop when told.

They import what they need themselves, compiled where the one who started them runs compiled code.
Ctrl-C in a terminal does not reach them: who started them hears it, and tells them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from load.compiled.loading import is_compiled, use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

_STOPPED: Final = 1
"""Exit status of a worker that was ended."""
_stop: Final = threading.Event()
"""Of a worker: set when it was told to stop and may finish what it does."""


Task = TypeVar("Task")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Workers:
    """A pool of processes."""

    pool: ProcessPoolExecutor
    stop: Callable[[], object]
    """Tell all of them to stop, those that begin later as well. A signal handler may call it."""

    def submit(self, function: Callable[[Task], Found], task: Task) -> Future[Found]:
        """Have one of them call a module's function; it is started if need be."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # what it inherits
        try:
            return self.pool.submit(function, task)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def worker_processes(count: int, *, finish: bool = False) -> Iterator[Workers]:
    """So many processes; an exception in the body stops them.

    Stopped they end at once, or with `finish` as soon as what they do heeds `is_stopping`.
    """
    context = get_context("spawn")
    told, teller = context.Pipe(duplex=False)
    with (
        told,
        teller,
        ProcessPoolExecutor(
            count,
            mp_context=context,
            initializer=_begin,
            initargs=(told, finish, _compiled_folder()),
        ) as pool,
    ):
        try:
            yield Workers(pool, teller.close)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            teller.close()
            raise


def is_stopping() -> bool:
    """In a worker that finishes: whether it was told to stop."""
    return _stop.is_set()


def end_with_parent() -> None:
    """Have this process end with its parent, whatever it does then."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(_STOPPED)


def _begin(told: Connection, finish: bool, compiled: Path | None) -> None:
    if compiled is not None:
        use(compiled)
    end_with_parent()
    stop = _stop.set if finish else partial(os._exit, _STOPPED)
    threading.Thread(target=_stop_when_told, args=(told, stop), daemon=True).start()


def _stop_when_told(told: Connection, stop: Callable[[], object]) -> None:
    """The other end is closed to tell it."""
    wait([told])
    stop()


def _compiled_folder() -> Path | None:
    """Where the compiled modules lie that this process runs; None: it runs plain Python."""
    event_queue = sys.modules.get("load.simulator.event_queue")
    if event_queue is None or event_queue.__file__ is None or not is_compiled(event_queue):
        return None
    return Path(event_queue.__file__).parents[2]
