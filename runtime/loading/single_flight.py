"""Concurrent calls for the same key share one execution."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class SingleFlight(Generic[Key, Value]):
    """Runs at most one piece of work per key; a cancelled caller does not cancel it."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._running: dict[Key, asyncio.Future[Value]] = {}

    async def run(self, key: Key, work: Callable[[], Awaitable[Value]]) -> Value:
        """The result of the running work of this key, else of `work`."""
        future = self._running.get(key)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            future.add_done_callback(mark_retrieved)
            self._running[key] = future
            self._tasks.create_task(self._execute(key, work, future))
        return await asyncio.shield(future)

    async def wait_ended(self, key: Key) -> None:
        """Return once no work of the key runs."""
        future = self._running.get(key)
        if future is not None:
            await asyncio.wait({future})

    async def _execute(
        self, key: Key, work: Callable[[], Awaitable[Value]], future: asyncio.Future[Value]
    ) -> None:
        try:
            future.set_result(await work())
        except asyncio.CancelledError:
            future.cancel()
            raise
        except Exception as error:  # raised by `run`
            future.set_exception(error)
        finally:
            del self._running[key]


def mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Prevent asyncio's warning about an error that no caller waits for any more."""
    if not future.cancelled():
        future.exception()
