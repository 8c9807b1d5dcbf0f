"""Failed loads of this pod and of the pool, which delay the next attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.domain.model import LoadFailure
from runtime.errors import LoadFailed, ModelBroken, ModelTooLarge, status_of
from runtime.loading.backoff import LoadFault, next_failure

if TYPE_CHECKING:
    from registry.domain.model import ModelSpec
    from registry.redis.watch import ClusterWatch

BROKEN_PAUSE_S = 300.0
"""Before a hung model is loaded again: each hang costs a thread until the pod ends."""


class LoadFailures:
    """Keeps failures of this pod also during an outage of the registry."""

    def __init__(self, watch: ClusterWatch) -> None:
        self._watch = watch
        self._own: dict[str, LoadFailure] = {}

    def check(self, spec: ModelSpec) -> None:
        """Raise LoadFailed before the time of the model's next attempt."""
        failure = self._last(spec)
        if failure is None:
            return
        wait_s = failure.retry_at_s - self._watch.registry_now_s()
        if wait_s <= 0:
            return
        if failure.http_status != status_of(ModelTooLarge("")):
            raise LoadFailed(failure.message, retry_after_s=wait_s)
        if spec.key in self._own:  # budgets of pods differ
            raise ModelTooLarge(failure.message, retry_after_s=wait_s)

    def record(self, spec: ModelSpec, error: LoadFailed) -> LoadFailure:
        """Record a failed load, and set the time of the next attempt in the error."""
        now_s = self._watch.registry_now_s()
        fault = LoadFault(error.reason, str(error), status_of(error))
        failure = next_failure(spec.key, fault, previous=self._last(spec), now_s=now_s)
        self._own[spec.key] = failure
        error.retry_after_s = failure.retry_at_s - now_s
        return failure

    def record_broken(self, key: str, reason: str) -> LoadFailure:
        """Record that an inference of the model hung."""
        failure = LoadFailure(
            key=key,
            reason=ModelBroken.reason,
            message=reason,
            attempts=1,
            retry_at_s=self._watch.registry_now_s() + BROKEN_PAUSE_S,
        )
        self._own[key] = failure
        return failure

    def clear(self, key: str) -> None:
        self._own.pop(key, None)

    def _last(self, spec: ModelSpec) -> LoadFailure | None:
        """The last failure of this pod or of any pod of the pool."""
        own = self._own.get(spec.key)
        record = self._watch.state.models.get(spec.name)
        shared = record.failure if record is not None else None
        if shared is None or shared.key != spec.key:
            return own
        return shared if own is None or shared.retry_at_s > own.retry_at_s else own
