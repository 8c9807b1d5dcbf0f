"""What is wanted of one load: whether somebody waits for it, and whether it is wanted at all.

Set on the event loop; read by the threads, ranges and copies of the load, which end soon after a
wish is withdrawn and make way for others while nobody waits.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from runtime.errors import LoadCancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load has brought its weights."""

    has_started: bool = False
    """Whether bytes of the weights have come through this pod's link, or are being mapped."""
    arrived_bytes: int = 0
    total_bytes: int = 0
    """Of the download; 0 where there is none."""


class LoadTicket:
    """One load's wish. Methods may be called from any thread."""

    def __init__(self, *, is_urgent: bool = True) -> None:
        self._is_urgent = is_urgent
        self._withdrawn_for: str | None = None
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._progress = LoadProgress()

    @property
    def is_urgent(self) -> bool:
        """Whether somebody waits for the load."""
        return self._is_urgent

    @property
    def is_cancelled(self) -> bool:
        """Whether the load is to end."""
        return self._withdrawn_for is not None

    def prioritise(self) -> None:
        """Somebody waits from now on."""
        self._set_urgent(True)

    def deprioritise(self) -> None:
        """Nobody waits any more, but the load goes on."""
        self._set_urgent(False)

    def _set_urgent(self, is_urgent: bool) -> None:
        if self._is_urgent != is_urgent:
            self._is_urgent = is_urgent
            self._tell()

    def cancel(self, reason: str) -> None:
        """End the load; `reason` completes the sentence "it was given up: …". The first counts."""
        with self._lock:
            if self._withdrawn_for is not None:
                return
            self._withdrawn_for = reason
        self._tell()

    def raise_if_cancelled(self) -> None:
        """Raise LoadCancelled where the wish is withdrawn."""
        if self._withdrawn_for is not None:
            raise LoadCancelled(f"the load was given up: {self._withdrawn_for}")

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener`, in any thread, after each change."""
        with self._lock:
            self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Call it no more."""
        with self._lock:
            self._listeners.remove(listener)

    def _tell(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    # Progress

    @property
    def progress(self) -> LoadProgress:
        """How far the weights are."""
        return self._progress

    def expect(self, total_bytes: int, here_bytes: int) -> None:
        """A download of so many bytes begins, some of which an earlier one brought."""
        with self._lock:
            self._progress = LoadProgress(self._progress.has_started, here_bytes, total_bytes)

    def add_arrived(self, byte_count: int) -> None:
        """Bytes have come."""
        with self._lock:
            before = self._progress
            self._progress = LoadProgress(
                True, before.arrived_bytes + byte_count, before.total_bytes
            )

    def mark_started(self) -> None:
        """Weights that are on this node are being put on the device."""
        self.add_arrived(0)


async def unless_cancelled(ticket: LoadTicket, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, cancelled and LoadCancelled raised as soon as the wish is withdrawn.

    Work that ended well all the same has its result returned, so that nothing it took is lost.
    """
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()

    def look() -> None:
        if ticket.is_cancelled:
            loop.call_soon_threadsafe(_settle, gone)

    ticket.add_listener(look)
    look()
    task = asyncio.ensure_future(work)
    try:
        waited: set[asyncio.Future[Any]] = {task, gone}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        ticket.remove_listener(look)
    if task.cancelled():
        ticket.raise_if_cancelled()
    return task.result()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
