"""Failed loads, of this pod and of the pool, and the time of the next attempt.

Pure, shared with the simulator. The pause before the next attempt doubles from 1 s up to 60 s; up
to 10 s after a full disk, on which space may be free at any moment and an attempt ends at once.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from common.backoff import Backoff
from registry.domain.model import LoadFailure, ModelSpec
from runtime.errors import (
    DiskFull,
    LoadFailed,
    ModelBroken,
    ModelInvalid,
    ModelTooLarge,
    ModelUnsupported,
    status_of,
)

if TYPE_CHECKING:
    from registry.domain.cluster import ClusterState

BACKOFF: Final = Backoff(initial_s=1.0, max_s=60.0)
DISK_FULL_BACKOFF: Final = Backoff(initial_s=1.0, max_s=10.0)
_PERMANENT: Final = {status_of(each("")): each for each in (ModelInvalid, ModelUnsupported)}
BROKEN_PAUSE_S: Final = 300.0
"""Pause before a hung model is loaded again: each hang costs a thread until the pod ends."""


def next_failure(
    key: str, error: LoadFailed, *, previous: LoadFailure | None, now_s: float
) -> LoadFailure:
    """The failure to record after the `previous` one of the same model; `now_s`: registry time."""
    backoff = DISK_FULL_BACKOFF if isinstance(error, DiskFull) else BACKOFF
    attempts = previous.attempts + 1 if previous is not None and previous.key == key else 1
    return LoadFailure(
        key=key,
        reason=error.reason,
        message=str(error),
        attempts=attempts,
        retry_at_s=now_s + backoff.pause_s(attempts),
        http_status=int(status_of(error)),
        exceeds_budget=isinstance(error, ModelTooLarge),
    )


class LoadFailures:
    """The last failure by model; this pod's failures are known during a registry outage, too."""

    def __init__(self, state: Callable[[], ClusterState], registry_now_s: Callable[[], float]):
        self._state = state
        self._now_s = registry_now_s
        self._own: dict[str, LoadFailure] = {}

    def check(self, spec: ModelSpec) -> None:
        """Raise LoadFailed before the time of the model's next attempt."""
        failure = self._last(spec)
        if failure is None:
            return
        wait_s = failure.retry_at_s - self._now_s()
        if wait_s <= 0:
            return
        if failure.http_status == HTTPStatus.INSUFFICIENT_STORAGE:
            if spec.key not in self._own:  # budgets of pods differ
                return
            if failure.exceeds_budget:
                raise ModelTooLarge(failure.message)
            raise DiskFull(failure.message, retry_after_s=wait_s)
        if failure.is_permanent:
            raise _PERMANENT[HTTPStatus(failure.http_status)](failure.message)
        raise LoadFailed(failure.message, retry_after_s=wait_s)

    def record(self, spec: ModelSpec, error: LoadFailed) -> LoadFailure:
        """Record a failed load, and in the error when a client may try again, if that can help."""
        now_s = self._now_s()
        failure = next_failure(spec.key, error, previous=self._last(spec), now_s=now_s)
        self._own[spec.key] = failure
        error.retry_after_s = None if failure.is_permanent else failure.retry_at_s - now_s
        return failure

    def record_broken(self, key: str, reason: str) -> LoadFailure:
        """Record that an inference of the model hung."""
        failure = LoadFailure(
            key=key,
            reason=ModelBroken.reason,
            message=reason,
            attempts=1,
            retry_at_s=self._now_s() + BROKEN_PAUSE_S,
        )
        self._own[key] = failure
        return failure

    def clear(self, key: str) -> None:
        self._own.pop(key, None)

    def _last(self, spec: ModelSpec) -> LoadFailure | None:
        """The last failure of this pod or of any pod of the pool."""
        own = self._own.get(spec.key)
        record = self._state().models.get(spec.name)
        shared = record.failure if record is not None else None
        if shared is None or shared.key != spec.key:
            return own
        return shared if own is None or shared.retry_at_s > own.retry_at_s else own
