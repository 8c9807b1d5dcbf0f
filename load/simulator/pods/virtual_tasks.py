"""Coroutines in virtual time: events set the futures that the coroutines await.

`runtime.loading.load_lifecycle` runs here as it does on an event loop of asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator


class VirtualTasks:
    """The coroutines of one simulated process; after `close` no coroutine continues."""

    __slots__ = ("_is_closed",)

    def __init__(self) -> None:
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True

    def future(self) -> VirtualFuture:
        return VirtualFuture(self)

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine to its end, or until it awaits a future without a result."""
        if self._is_closed:
            coroutine.close()
            return
        try:
            future: VirtualFuture = coroutine.send(None)
        except StopIteration:
            return
        future.coroutine = coroutine


class VirtualFuture:
    """A result that one coroutine awaits; the first call of `set` counts."""

    __slots__ = ("_result", "_tasks", "coroutine", "is_set")

    def __init__(self, tasks: VirtualTasks) -> None:
        self._tasks = tasks
        self._result = False
        self.is_set = False
        self.coroutine: Coroutine[Any, Any, None] | None = None
        """The coroutine that awaits this future."""

    def set(self, result: bool) -> None:
        """Set the result, and continue the coroutine that awaits it."""
        if self.is_set:
            return
        self.is_set = True
        self._result = result
        if self.coroutine is not None:
            self._tasks.run(self.coroutine)

    def __await__(self) -> Generator[VirtualFuture, None, bool]:
        if not self.is_set:
            yield self
        return self._result
