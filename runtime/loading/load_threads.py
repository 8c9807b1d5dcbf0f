"""Work of loads on the event loop: cancellable, and shared by those who want the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from runtime.storage.load_priority import LoadTicket

Key = TypeVar("Key")
Result = TypeVar("Result")


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
