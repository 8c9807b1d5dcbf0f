"""Threads that transfer the parts of all running loads: those of urgent loads first.

Of loads of equal urgency, the one with the fewest parts so far is next, so a small load does not
end after a large one that began before it. Preloads leave one thread free for urgent loads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runtime.storage.load_ticket import LoadTicket

if TYPE_CHECKING:
    from runtime.weights.weight_source import SlabPart


@dataclass(eq=False, slots=True)
class _Transfer:
    """One load. Mutable: guarded by the lock of the pool."""

    ticket: LoadTicket
    copy: Callable[[SlabPart], None]
    waiting: deque[SlabPart] = field(default_factory=deque)
    under_way: int = 0
    begun: int = 0
    """Parts that a reader has taken."""
    error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self.waiting.clear()


def _ended(_: SlabPart) -> None:
    """In place of the copy of a transfer that is over."""


class ReaderPool:
    """The readers of a pod. `run` is called by the threads of loads."""

    def __init__(self, readers: int) -> None:
        self._max_preload_readers = max(1, readers - 1)
        self._max_waiting = 2 * readers
        """Parts that one load may queue: the source of the others is not read yet."""
        self._changed = threading.Condition()
        self._transfers: list[_Transfer] = []
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"reader-{number}", daemon=True)
            for number in range(readers)
        ]
        for thread in self._threads:
            thread.start()

    def run(
        self,
        parts: Iterator[SlabPart],
        copy: Callable[[SlabPart], None],
        ticket: LoadTicket | None = None,
    ) -> None:
        """Return once `copy` was called for each part, by several readers at once.

        Raises LoadCancelled soon after the ticket is cancelled, CancelledError when the pool is
        closed, and errors of `parts` and `copy`; no part is being copied any more then.
        """
        transfer = _Transfer(ticket or LoadTicket(), copy)
        transfer.ticket.add_listener(self._notify)
        with self._changed:
            self._transfers.append(transfer)
        try:
            for part in parts:
                if not self._queue(transfer, part):
                    break
        except BaseException as error:
            with self._changed:
                transfer.fail(error)
        finally:
            self._finish(transfer)
            transfer.ticket.remove_listener(self._notify)
            transfer.copy = _ended  # frames of an error may keep the transfer, which keeps a slab
        if transfer.error is not None:
            raise transfer.error

    def close(self) -> None:
        """End all transfers and stop the readers."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _queue(self, transfer: _Transfer, part: SlabPart) -> bool:
        """Queue a part once there is room for it; False if the transfer has failed."""
        with self._changed:
            while not self._has_ended(transfer) and len(transfer.waiting) >= self._max_waiting:
                self._changed.wait()
            if self._has_ended(transfer):
                return False
            transfer.waiting.append(part)
            self._changed.notify_all()
            return True

    def _finish(self, transfer: _Transfer) -> None:
        """Wait until no part is left or under way."""
        with self._changed:
            while (transfer.waiting and not self._has_ended(transfer)) or transfer.under_way:
                self._changed.wait()
            self._has_ended(transfer)
            self._transfers.remove(transfer)

    def _has_ended(self, transfer: _Transfer) -> bool:
        """Whether the transfer has failed, was cancelled, or must end with the pool."""
        if self._is_closed and transfer.waiting:
            transfer.fail(CancelledError("the pod's device is closed"))
        if transfer.ticket.is_cancelled and transfer.waiting:
            try:
                transfer.ticket.raise_if_cancelled()
            except BaseException as error:
                transfer.fail(error)
        return transfer.error is not None

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # The readers

    def _serve(self) -> None:
        while (taken := self._take()) is not None:
            transfer, part = taken
            error: BaseException | None = None
            try:
                transfer.copy(part)
            except BaseException as raised:  # raised again by `run`
                error = raised
            with self._changed:
                transfer.under_way -= 1
                if error is not None:
                    transfer.fail(error)
                del taken, transfer, error  # they keep a slab alive, until `run` may return
                self._changed.notify_all()

    def _take(self) -> tuple[_Transfer, SlabPart] | None:
        """Wait for the next part; None when the pool closes."""
        with self._changed:
            while not self._is_closed:
                transfer = self._next()
                if transfer is not None:
                    transfer.under_way += 1
                    transfer.begun += 1
                    part = transfer.waiting.popleft()
                    self._changed.notify_all()
                    return transfer, part
                self._changed.wait()
            return None

    def _next(self) -> _Transfer | None:
        preloading = sum(each.under_way for each in self._transfers if not each.ticket.is_urgent)
        ready = [
            each
            for each in self._transfers
            if each.waiting
            and not self._has_ended(each)
            and (each.ticket.is_urgent or preloading < self._max_preload_readers)
        ]
        return min(ready, key=lambda each: (not each.ticket.is_urgent, each.begun), default=None)
