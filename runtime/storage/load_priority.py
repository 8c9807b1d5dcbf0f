"""The priority of one load, its cancellation and its start, shared by all threads of the load.

The event loop sets them; threads, downloads and copies of the load read them, end soon after the
load is cancelled, and give way to urgent loads while no request waits for this one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from runtime.errors import LoadCancelled


class LoadTicket:
    """Priority, cancellation and start of one load. Methods may be called from any thread."""

    def __init__(self, *, is_urgent: bool = True) -> None:
        self.is_urgent = is_urgent
        """Whether a request waits for the load; set by `prioritise` and `deprioritise`."""
        self.due_s: float | None = None
        """When it should have ended, on the monotonic clock, though no request waits yet."""
        self.has_started = False
        """Whether this load has downloaded bytes of weights, or maps those of this node."""
        self._cancel_reason: str | None = None
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_cancelled(self) -> bool:
        return self._cancel_reason is not None

    def prioritise(self) -> None:
        """Make the load urgent, since a request waits for it."""
        self._set_urgent(True)

    def deprioritise(self) -> None:
        """Continue the load as a preload, since no request waits for it any more."""
        self._set_urgent(False)

    def expect_by(self, due_s: float) -> None:
        """Somebody needs the load to have ended by then; the earliest such time counts."""
        if self.due_s is None or due_s < self.due_s:
            self.due_s = due_s

    def _set_urgent(self, is_urgent: bool) -> None:
        if self.is_urgent != is_urgent:
            self.is_urgent = is_urgent
            self._notify()

    def cancel(self, reason: str) -> None:
        """End the load; `reason` completes "the load was cancelled: …". The first reason stays."""
        with self._lock:
            if self._cancel_reason is not None:
                return
            self._cancel_reason = reason
        self._notify()

    def raise_if_cancelled(self) -> None:
        if self._cancel_reason is not None:
            raise LoadCancelled(f"the load was cancelled: {self._cancel_reason}")

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener`, in any thread, after each change of priority or cancellation."""
        with self._lock:
            self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners.remove(listener)

    def _notify(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()
