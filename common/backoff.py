"""Exponential backoff. The caller keeps the time."""

import math
from dataclasses import dataclass, field
from typing import Final

MAX_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts, doubled with each failure in a row."""

    initial_s: float
    max_s: float = math.inf

    def pause_s(self, failures: int) -> float:
        """The pause after this many failures in a row, from 1."""
        return min(self.max_s, self.initial_s * 2.0 ** min(failures - 1, 30))


@dataclass(frozen=True, slots=True)
class _Pause:
    failures: int
    start_s: float
    end_s: float


@dataclass(slots=True)
class KeyedBackoff:
    """Pauses by key. Used by one task only."""

    backoff: Backoff = Backoff(initial_s=1.0, max_s=MAX_S)
    fades_s: float = 2 * MAX_S
    """A failure later than this after the last pause counts as the first."""
    _pauses: dict[str, _Pause] = field(default_factory=dict)

    def failed(self, key: str, now_s: float) -> float:
        """Record a failure; returns the length of the pause in seconds."""
        self._pauses = {  # without old ones
            each: pause
            for each, pause in self._pauses.items()
            if pause.start_s - self.backoff.max_s <= now_s < pause.end_s + self.fades_s
        }
        known = self._pauses.get(key)
        failures = known.failures + 1 if known is not None else 1
        pause_s = self.backoff.pause_s(failures)
        self._pauses[key] = _Pause(failures, now_s, now_s + pause_s)
        return pause_s

    def succeeded(self, key: str) -> None:
        """The next failure counts as the first."""
        self._pauses.pop(key, None)

    def is_paused(self, key: str, now_s: float) -> bool:
        pause = self._pauses.get(key)
        return pause is not None and pause.start_s <= now_s < pause.end_s

    def paused(self, now_s: float) -> frozenset[str]:
        return frozenset(key for key in self._pauses if self.is_paused(key, now_s))
