"""Several callers who want the same thing at once share one piece of work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class SingleFlight(Generic[Key, Value]):
    """Runs at most one piece of work per key; a caller who leaves does not stop it."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._flights: dict[Key, asyncio.Future[Value]] = {}

    async def run(self, key: Key, work: Callable[[], Awaitable[Value]]) -> Value:
        """The result of `work`, of this call's or of the one under way."""
        future = self._flights.get(key)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            future.add_done_callback(_retrieve)
            self._flights[key] = future
            self._tasks.create_task(self._fly(key, work, future))
        return await asyncio.shield(future)

    async def wait_over(self, key: Key) -> None:
        """Return once no work of the key is under way, however that ended."""
        future = self._flights.get(key)
        if future is not None:
            await asyncio.wait({future})

    async def _fly(
        self, key: Key, work: Callable[[], Awaitable[Value]], future: asyncio.Future[Value]
    ) -> None:
        try:
            future.set_result(await work())
        except asyncio.CancelledError:
            future.cancel()
            raise
        except Exception as error:  # it belongs to those who wait
            future.set_exception(error)
        finally:
            del self._flights[key]


def _retrieve(future: asyncio.Future[Value]) -> None:
    """Mark an error as seen: the last caller may have left before it came."""
    if not future.cancelled():
        future.exception()
