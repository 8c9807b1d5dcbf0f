"""The time of the next attempt after a failed load: 1 s later, then twice as long, up to 60 s."""

from __future__ import annotations

from dataclasses import dataclass

from registry.domain.model import LoadFailure

INITIAL_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0


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
    wait_s = min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2.0 ** min(attempts - 1, 16))
    return LoadFailure(
        key=key,
        reason=fault.reason,
        message=fault.message,
        attempts=attempts,
        retry_at_s=now_s + wait_s,
        http_status=fault.http_status,
    )
