"""How long a pod that refused, or a load that failed, is left alone: 1 s, doubling up to 5 min.

Pure: the clock is an argument, and one that goes back shortens no pause beyond its length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

FIRST_S: Final = 1.0
LONGEST_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class _Pause:
    refusals: int
    from_s: float
    until_s: float


@dataclass(slots=True)
class Backoff:
    """Pauses by whom they are about. One owner; those long over are forgotten."""

    _pauses: dict[str, _Pause] = field(default_factory=dict)

    def refused(self, whom: str, now_s: float) -> float:
        """Note a refusal; seconds of the pause."""
        known = self._pauses.get(whom)
        refusals = known.refusals + 1 if known is not None else 1
        pause_s = min(LONGEST_S, FIRST_S * 2.0 ** min(refusals - 1, 16))
        self._pauses[whom] = _Pause(refusals, now_s, now_s + pause_s)
        self._forget_old(now_s)
        return pause_s

    def took(self, whom: str) -> None:
        """It went well: the next refusal counts as the first."""
        self._pauses.pop(whom, None)

    def is_paused(self, whom: str, now_s: float) -> bool:
        """Whether it is to be left alone."""
        pause = self._pauses.get(whom)
        return pause is not None and pause.from_s <= now_s < pause.until_s

    def _forget_old(self, now_s: float) -> None:
        over = [
            whom
            for whom, pause in self._pauses.items()
            if not pause.from_s - LONGEST_S <= now_s < pause.until_s + 2 * LONGEST_S
        ]
        for whom in over:
            del self._pauses[whom]
