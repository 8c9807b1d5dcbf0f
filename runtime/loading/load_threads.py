"""The threads of loads: what somebody waits for goes first, and preloads never take all of them.

How urgent a piece of work is, is asked when a thread is free, so a load that became urgent
overtakes also with what it had handed in before.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from runtime.storage.load_ticket import LoadTicket

if TYPE_CHECKING:
    from collections.abc import Callable

LOAD_THREADS = 16
MOST_PRELOADING = 8
"""A load from storage takes two for a while: one fetches, one puts on the device."""

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


@dataclass(frozen=True, slots=True)
class _Job:
    ticket: LoadTicket
    work: Callable[[], Any]
    future: Future[Any]


class LoadThreads(Executor):
    """All threads of a pod's loads; work that is submitted here directly is urgent."""

    def __init__(
        self, threads: int = LOAD_THREADS, *, most_preloading: int = MOST_PRELOADING
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, "load")
        self._most_preloading = most_preloading
        self._lock = threading.Lock()
        self._waiting: deque[_Job] = deque()
        self._preloading = 0
        self._urgent = LoadTicket()

    def of(self, ticket: LoadTicket) -> Executor:
        """The threads for one load's work; what waits when the wish is withdrawn is not run."""
        ticket.add_listener(self._look)
        return _ThreadsOf(self, ticket)

    def submit(
        self,
        function: Callable[Arguments, Result],
        /,
        *arguments: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> Future[Result]:
        """Run urgent work."""
        return self.submit_for(self._urgent, partial(function, *arguments, **keywords))

    def submit_for(self, ticket: LoadTicket, work: Callable[[], Result]) -> Future[Result]:
        """Run a load's work when it is its turn; the future has LoadCancelled if that is over."""
        job = _Job(ticket, work, Future())
        with self._lock:
            self._waiting.append(job)
        self._pool.submit(self._run_next)
        return job.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As every executor's."""
        if cancel_futures:
            with self._lock:
                waiting, self._waiting = self._waiting, deque()
            for job in waiting:
                job.future.cancel()
        self._pool.shutdown(wait=wait, cancel_futures=cancel_futures)

    def _look(self) -> None:
        """A wish changed: what waited behind others may be next, or may be over."""
        with self._lock:
            over = [job for job in self._waiting if job.ticket.is_cancelled]
            for job in over:
                self._waiting.remove(job)
            has_more = bool(self._waiting)
        for job in over:
            _run(job)
        if has_more:
            self._try_next()

    def _try_next(self) -> None:
        try:
            self._pool.submit(self._run_next)
        except RuntimeError:  # shut down
            return

    def _run_next(self) -> None:
        with self._lock:
            job = self._pick()
            if job is None:
                return
            is_preload = not job.ticket.is_urgent
            self._preloading += is_preload
        try:
            _run(job)
        finally:
            with self._lock:
                self._preloading -= is_preload
                has_more = is_preload and bool(self._waiting)
        if has_more:
            self._try_next()

    def _pick(self) -> _Job | None:
        """The oldest urgent job, else the oldest preload's that may run beside those that do."""
        found = next((job for job in self._waiting if job.ticket.is_urgent), None)
        if found is None and self._waiting and self._preloading < self._most_preloading:
            found = self._waiting[0]
        if found is not None:
            self._waiting.remove(found)
        return found


class _ThreadsOf(Executor):
    """The threads as one load sees them."""

    def __init__(self, threads: LoadThreads, ticket: LoadTicket) -> None:
        self._threads = threads
        self._ticket = ticket

    def submit(
        self,
        function: Callable[Arguments, Result],
        /,
        *arguments: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> Future[Result]:
        return self._threads.submit_for(self._ticket, partial(function, *arguments, **keywords))


def _run(job: _Job) -> None:
    if not job.future.set_running_or_notify_cancel():
        return
    try:
        job.ticket.raise_if_cancelled()
        result = job.work()
    except BaseException as error:  # it belongs to whoever waits for the work
        job.future.set_exception(error)
    else:
        job.future.set_result(result)
