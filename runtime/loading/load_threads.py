"""Runs the work of loads, in threads and on the event loop: prioritised, cancellable, shared.

Threads run urgent work first, and preloads never occupy all threads. The priority of queued work is
read when a thread becomes free, so a load that becomes urgent also moves forward the work that it
queued earlier.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from runtime.storage.load_priority import LoadTicket

LOAD_THREADS = 16
MAX_PRELOAD_THREADS = 8
"""A load from storage occupies two threads for a while: a download and a copy to the device."""

Key = TypeVar("Key")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


@dataclass(frozen=True, slots=True)
class _Job:
    ticket: LoadTicket
    work: Callable[[], Any]
    future: Future[Any]

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.ticket.raise_if_cancelled()
            result = self.work()
        except BaseException as error:  # raised by the future
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class _LoadExecutor(Executor):
    """Submits work for one ticket."""

    def __init__(
        self, ticket: LoadTicket, submit_for: Callable[[LoadTicket, Callable[[], Any]], Future[Any]]
    ) -> None:
        self._ticket = ticket
        self._submit_for = submit_for

    def submit(
        self,
        function: Callable[Arguments, Result],
        /,
        *arguments: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> Future[Result]:
        return self._submit_for(self._ticket, partial(function, *arguments, **keywords))


class LoadThreads(_LoadExecutor):
    """All threads of a pod's loads. Work submitted directly is urgent; see also `executor_for`."""

    def __init__(
        self, threads: int = LOAD_THREADS, *, max_preload_threads: int = MAX_PRELOAD_THREADS
    ) -> None:
        super().__init__(LoadTicket(), self.submit_for)
        self._pool = ThreadPoolExecutor(threads, "load")
        self._max_preload_threads = max_preload_threads
        self._lock = threading.Lock()
        self._queue: deque[_Job] = deque()
        self._preloading = 0

    def executor_for(self, ticket: LoadTicket) -> Executor:
        """An executor with the ticket's priority; cancelling the ticket removes queued work."""
        ticket.add_listener(self._reschedule)
        return _LoadExecutor(ticket, self.submit_for)

    def submit_for(self, ticket: LoadTicket, work: Callable[[], Result]) -> Future[Result]:
        """Queue a load's work; the future raises LoadCancelled if the ticket is cancelled first."""
        job = _Job(ticket, work, Future())
        with self._lock:
            self._queue.append(job)
        self._pool.submit(self._run_next)
        return job.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            with self._lock:
                queue, self._queue = self._queue, deque()
            for job in queue:
                job.future.cancel()
        self._pool.shutdown(wait=wait, cancel_futures=cancel_futures)

    def _reschedule(self) -> None:
        """Remove the work of a cancelled load, and run work that became urgent."""
        with self._lock:
            cancelled = [job for job in self._queue if job.ticket.is_cancelled]
            for job in cancelled:
                self._queue.remove(job)
            has_more = bool(self._queue)
        for job in cancelled:
            job.run()
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
            job.run()
        finally:
            with self._lock:
                self._preloading -= is_preload
                has_more = is_preload and bool(self._queue)
        if has_more:
            self._try_next()

    def _pick(self) -> _Job | None:
        """Remove the oldest urgent job, or the oldest preload job within the limit of preloads."""
        found = next((job for job in self._queue if job.ticket.is_urgent), None)
        if found is None and self._queue and self._preloading < self._max_preload_threads:
            found = self._queue[0]
        if found is not None:
            self._queue.remove(found)
        return found


async def unless_cancelled(ticket: LoadTicket, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`; cancels `work` and raises LoadCancelled once the ticket is cancelled.

    If `work` completes all the same, its result is returned, so that resources in it are not lost.
    """
    loop = asyncio.get_running_loop()
    cancelled: asyncio.Future[None] = loop.create_future()

    def on_change() -> None:
        if ticket.is_cancelled:
            loop.call_soon_threadsafe(_set_done, cancelled)

    ticket.add_listener(on_change)
    on_change()
    task = asyncio.ensure_future(work)
    try:
        waited: set[asyncio.Future[Any]] = {task, cancelled}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        ticket.remove_listener(on_change)
    if task.cancelled():
        ticket.raise_if_cancelled()
    try:
        return task.result()
    finally:
        del task, waited  # they keep the error, whose traceback has this frame


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class SingleFlight(Generic[Key, Result]):
    """Runs at most one piece of work per key; a cancelled caller does not cancel it."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._running: dict[Key, asyncio.Future[Result]] = {}

    async def run(self, key: Key, work: Callable[[], Awaitable[Result]]) -> Result:
        """The result of the running work of this key, else of `work`."""
        future = self._running.get(key)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            future.add_done_callback(mark_retrieved)
            self._running[key] = future
            self._tasks.create_task(self._execute(key, work, future))
        try:
            return await asyncio.shield(future)
        finally:
            del future

    async def wait_ended(self, key: Key) -> None:
        """Return once no work of the key runs."""
        future = self._running.get(key)
        if future is not None:
            await asyncio.wait({future})

    async def _execute(
        self, key: Key, work: Callable[[], Awaitable[Result]], future: asyncio.Future[Result]
    ) -> None:
        try:
            future.set_result(await work())
        except asyncio.CancelledError:
            future.cancel()
            raise
        except Exception as error:  # raised by `run`
            future.set_exception(error)
        finally:
            del self._running[key], future  # it keeps the error, whose traceback has this frame


def mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Prevent asyncio's warning about an error that no caller waits for any more."""
    if not future.cancelled():
        future.exception()
