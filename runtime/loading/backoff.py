"""When a failed load may be tried again: after 1 s, then twice as long each time, up to 60 s."""

from __future__ import annotations

from dataclasses import dataclass

from registry.domain.model import LoadFailure

FIRST_S = 1.0
LONGEST_S = 60.0


@dataclass(frozen=True, slots=True)
class LoadFault:
    """What went wrong with a load."""

    reason: str
    message: str
    http_status: int


def next_failure(
    key: str, fault: LoadFault, *, previous: LoadFailure | None, now_s: float
) -> LoadFailure:
    """The failure to record, given the last one of the same model; `now_s` is registry time."""
    attempts = previous.attempts + 1 if previous is not None and previous.key == key else 1
    wait_s = min(LONGEST_S, FIRST_S * 2.0 ** min(attempts - 1, 16))
    return LoadFailure(
        key=key,
        reason=fault.reason,
        message=fault.message,
        attempts=attempts,
        retry_at_s=now_s + wait_s,
        http_status=fault.http_status,
    )
