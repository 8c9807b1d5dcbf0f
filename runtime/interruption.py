"""Ends a block of a task from outside, as `asyncio.timeout` ends one at a time that has come."""

from __future__ import annotations

import asyncio


class Interruption:
    """For the block of the current task that begins now. Belongs to the event loop."""

    __slots__ = ("_cancelling", "_is_over", "_task", "is_requested")

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a block of a task can be interrupted")
        self._task = task
        self._cancelling = task.cancelling()
        self._is_over = False
        self.is_requested = False

    def request(self) -> None:
        """Cancel the block, unless it is over."""
        if not self._is_over and not self.is_requested:
            self.is_requested = True
            self._task.cancel()

    def end(self, error: BaseException | None) -> bool:
        """The block is over, once: whether by the interruption, which is no cancellation then."""
        self._is_over = True
        if not self.is_requested:
            return False
        return self._task.uncancel() <= self._cancelling and isinstance(
            error, asyncio.CancelledError
        )
