"""Which evaluations are refused after one was killed: those as long, or nearly, of its model.

Pure. A template that never ends is soon refused whatever its input; a tokenizer that a huge text
holds up goes on with texts of usual length, so one client's request does not shut its model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PAUSE_S: Final = 300.0
SHARE: Final = 4
"""Inputs of a killed one's length divided by this, or more, are refused."""
MIN_BYTES: Final = 4096
"""A kill by an input up to this long refuses all inputs."""


@dataclass(slots=True)
class Refusals:
    """Of one model. Times are of one clock."""

    from_bytes: int | None = None
    until_s: float = 0.0

    def record(self, size_bytes: int, now_s: float) -> None:
        """Record that an evaluation of an input of this size was killed."""
        allowed = size_bytes // SHARE if size_bytes > MIN_BYTES else 0
        if self.from_bytes is not None and now_s < self.until_s:
            allowed = min(allowed, self.from_bytes)
        self.from_bytes, self.until_s = allowed, now_s + PAUSE_S

    def refused_s(self, size_bytes: int, now_s: float) -> float:
        """For how long an input of this size is refused; 0 if it is not."""
        if self.from_bytes is None or size_bytes < self.from_bytes or now_s >= self.until_s:
            return 0.0
        return self.until_s - now_s
