"""A pod's link to object storage, shared by all its downloads: its rate, and who goes first.

While a download that somebody waits for brings bytes, the others bring one for each
`PRELOAD_SHARE` of its own, whether or not the link has a stated rate; so they starve never, and
each of them may become urgent while it runs.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from runtime.errors import StorageFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runtime.storage.load_ticket import LoadTicket

PRELOAD_SHARE = 1 / 16
"""Of the bytes of urgent downloads, what the others may bring meanwhile."""
MOST_PRELOAD_READERS = 16
"""Connections of all downloads that nobody waits for; a pod has twice as many to an endpoint."""
MOST_CREDIT_BYTES = 1024**2
PIECE_S = 0.02
"""Of a stated rate, what passes at once: so long may others be ahead of an urgent download."""
STALLED_S = 1.0
"""An urgent download that brings nothing for this long holds nobody up."""


class Bandwidth:
    """A token bucket over bytes, for threads: bytes are taken when they may have passed.

    Each taker moves the time at which the link is free again; the sum over all threads keeps to
    the rate, and short pauses of a reader are made up within `burst_s`.
    """

    def __init__(
        self,
        bytes_per_s: float | None,
        *,
        burst_s: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self._burst_s = burst_s
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at_s = 0.0
        self._is_cut = False
        self._turn = threading.Condition()
        self._open: list[BandwidthUse] = []
        self._credit_bytes = 0.0
        self._preload_readers = 0

    def cut(self) -> None:
        """Let nothing more pass: the pod leaves."""
        self._is_cut = True
        self._look()

    def use(self, ticket: LoadTicket) -> BandwidthUse:
        """The link for one load's downloads."""
        return BandwidthUse(self, ticket)

    # For uses

    def open(self, use: BandwidthUse) -> None:
        """A use begins."""
        use.last_s = self._clock()
        use.ticket.add_listener(self._look)
        with self._turn:
            self._open.append(use)

    def close(self, use: BandwidthUse) -> None:
        """It ends."""
        use.ticket.remove_listener(self._look)
        with self._turn:
            self._open.remove(use)
            self._turn.notify_all()

    def take(self, use: BandwidthUse, byte_count: int) -> None:
        """Wait until the bytes have passed; raises StorageFailed if cut, LoadCancelled."""
        most = byte_count
        if self.bytes_per_s is not None:
            most = max(1, int(self.bytes_per_s * PIECE_S))
        while byte_count > 0:
            piece = min(byte_count, most)
            self._wait_turn(use, piece)
            self._pace(piece)
            use.ticket.add_arrived(piece)
            byte_count -= piece

    @contextmanager
    def reader_place(self, use: BandwidthUse) -> Iterator[None]:
        """A place for one connection; those that nobody waits for have few of them."""
        with self._turn:
            self._turn.wait_for(
                lambda: (
                    self._is_over(use)
                    or use.ticket.is_urgent
                    or self._preload_readers < MOST_PRELOAD_READERS
                )
            )
            self._check(use)
            places = 0 if use.ticket.is_urgent else 1
            self._preload_readers += places
        try:
            yield
        finally:
            with self._turn:
                self._preload_readers -= places
                self._turn.notify_all()

    def _look(self) -> None:
        with self._turn:
            self._turn.notify_all()

    def _is_over(self, use: BandwidthUse) -> bool:
        return self._is_cut or use.ticket.is_cancelled

    def _check(self, use: BandwidthUse) -> None:
        if self._is_cut:
            raise StorageFailed("the pod shuts down: what has come stays for the next one")
        use.ticket.raise_if_cancelled()

    def _wait_turn(self, use: BandwidthUse, byte_count: int) -> None:
        """Let urgent downloads go first; pay for what passes beside them."""
        self._check(use)
        with self._turn:
            use.last_s = self._clock()
            if len(self._open) < 2:
                return
            if use.ticket.is_urgent:
                earned = self._credit_bytes + PRELOAD_SHARE * byte_count
                self._credit_bytes = min(MOST_CREDIT_BYTES, earned)
                self._turn.notify_all()
                return
            price = min(byte_count, MOST_CREDIT_BYTES)
            while not self._may_pass(use, price):
                self._turn.wait(STALLED_S)
            if self._has_urgent():
                self._credit_bytes = max(0.0, self._credit_bytes - price)
        self._check(use)

    def _may_pass(self, use: BandwidthUse, price: int) -> bool:
        if self._is_over(use) or use.ticket.is_urgent or self._credit_bytes >= price:
            return True
        return not self._has_urgent()

    def _has_urgent(self) -> bool:
        """Whether a download that somebody waits for is bringing bytes."""
        since_s = self._clock() - STALLED_S
        return any(use.ticket.is_urgent and use.last_s > since_s for use in self._open)

    def _pace(self, byte_count: int) -> None:
        if self.bytes_per_s is None:
            return
        with self._lock:
            now_s = self._clock()
            start_s = max(self._free_at_s, now_s - self._burst_s)
            self._free_at_s = start_s + byte_count / self.bytes_per_s
            wait_s = self._free_at_s - now_s
        if wait_s > 0:
            self._sleep(wait_s)


class BandwidthUse:
    """The link as the downloads of one load see it, from entering to leaving."""

    def __init__(self, link: Bandwidth, ticket: LoadTicket) -> None:
        self.ticket = ticket
        self.last_s = 0.0
        """When it last brought bytes, on the link's clock."""
        self._link = link

    def __enter__(self) -> Self:
        self._link.open(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close(self)

    @property
    def bytes_per_s(self) -> float | None:
        """The rate of the whole link, where one is stated."""
        return self._link.bytes_per_s

    def take(self, byte_count: int) -> None:
        """Wait until so many more bytes have passed; raises StorageFailed, LoadCancelled."""
        self._link.take(self, byte_count)

    @contextmanager
    def reader_place(self) -> Iterator[None]:
        """A place for one connection; raises StorageFailed, LoadCancelled."""
        with self._link.reader_place(self):
            yield
