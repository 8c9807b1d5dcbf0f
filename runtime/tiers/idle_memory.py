"""Device memory of idle models over time, in bytes x seconds: the wasted memory-time.

Pure, shared with the simulator. Exact: updated whenever a model becomes idle or stops being so.

Source: Shahrad et al. 2020, "Serverless in the Wild", section 4.1, weighted by size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class IdleMemory:
    """The sum for one device. Never decreases."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Start without idle models; the clock must be monotonic."""
        self._now_s = now_s
        self._since_s = now_s()
        self._idle_bytes = 0
        self._byte_s = 0.0

    @property
    def byte_s(self) -> float:
        return self._byte_s + self._idle_bytes * (self._now_s() - self._since_s)

    def begin(self, memory_bytes: int) -> None:
        """Record that a model of this size became idle."""
        self._advance()
        self._idle_bytes += memory_bytes

    def end(self, memory_bytes: int) -> None:
        """Record that an idle model is used or removed."""
        self._advance()
        self._idle_bytes -= memory_bytes

    def _advance(self) -> None:
        now_s = self._now_s()
        self._byte_s += self._idle_bytes * (now_s - self._since_s)
        self._since_s = now_s
