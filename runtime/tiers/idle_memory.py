"""What idle models hold of a device over time: bytes x seconds, the memory-time that is wasted.

Pure, shared with the simulator. Exact: it is summed up whenever a model becomes idle or is no more.

Source: Shahrad et al. 2020, "Serverless in the Wild", section 4.1, weighted by size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class IdleMemory:
    """The sum for one device. Only grows."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Nothing is idle yet; the clock does not go back."""
        self._now_s = now_s
        self._since_s = now_s()
        self._idle_bytes = 0
        self._byte_s = 0.0

    @property
    def byte_s(self) -> float:
        """Bytes of idle models times seconds, up to now."""
        return self._byte_s + self._idle_bytes * (self._now_s() - self._since_s)

    def begin(self, memory_bytes: int) -> None:
        """A model of this size is idle from now on."""
        self._pass()
        self._idle_bytes += memory_bytes

    def end(self, memory_bytes: int) -> None:
        """A model that was idle is used, or has left."""
        self._pass()
        self._idle_bytes -= memory_bytes

    def _pass(self) -> None:
        now_s = self._now_s()
        self._byte_s += self._idle_bytes * (now_s - self._since_s)
        self._since_s = now_s
