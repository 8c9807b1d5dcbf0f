"""How long to wait before a process that died is started again. Pure: the clock is an argument."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackoffParams:
    """Seconds; doubles from `first_s` to `longest_s`."""

    first_s: float = 0.25
    longest_s: float = 30.0
    healthy_after_s: float = 30.0
    """A process that ran this long starts the count anew when it dies."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Deaths in a row so far."""

    deaths: int = 0


def after_death(state: Backoff, *, ran_s: float, params: BackoffParams) -> tuple[Backoff, float]:
    """The next state, and the delay in seconds before the restart."""
    deaths = 1 if ran_s >= params.healthy_after_s else state.deaths + 1
    delay_s = min(params.longest_s, params.first_s * 2.0 ** min(deaths - 1, 30))
    return Backoff(deaths), delay_s
