"""The batch that a gateway builds for one model under `batch-round-robin`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_BUILD_S: Final = 0.1
"""From a batch's first request until no more are added: MAX_WAIT_TIME of Elvinger 2024, 4.3.3."""


@dataclass(frozen=True, slots=True)
class BatchTurn:
    """A batch in the making, and the pod it goes to."""

    pod: str
    opened_s: float
    requests: int

    def is_open(self, batch_size: int, now_s: float) -> bool:
        """Whether the next request still belongs to this batch."""
        return self.requests < batch_size and 0 <= now_s - self.opened_s < MAX_BUILD_S
