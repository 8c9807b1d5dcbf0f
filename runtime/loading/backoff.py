"""The time of the next attempt after a failed load: 1 s later, then twice as long, up to 60 s."""

from __future__ import annotations

from dataclasses import dataclass

from registry.backoff import Backoff
from registry.domain.model import LoadFailure

BACKOFF = Backoff(initial_s=1.0, max_s=60.0)


@dataclass(frozen=True, slots=True)
class LoadFault:
    """The error of a load."""

    reason: str
    message: str
    http_status: int


def next_failure(
    key: str, fault: LoadFault, *, previous: LoadFailure | None, now_s: float
) -> LoadFailure:
    """The failure to record after the `previous` one of the same model; `now_s`: registry time."""
    attempts = previous.attempts + 1 if previous is not None and previous.key == key else 1
    return LoadFailure(
        key=key,
        reason=fault.reason,
        message=fault.message,
        attempts=attempts,
        retry_at_s=now_s + BACKOFF.pause_s(attempts),
        http_status=fault.http_status,
    )
