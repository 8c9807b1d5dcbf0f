"""The failed loads a pod knows of, its own and the pool's, and when they may be tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.domain.model import LoadFailure
from runtime.errors import LoadFailed, ModelBroken, ModelTooLarge, status_of
from runtime.loading.backoff import LoadFault, next_failure

if TYPE_CHECKING:
    from registry.domain.model import ModelSpec
    from registry.redis.watch import ClusterWatch

BROKEN_PAUSE_S = 300.0
"""A model that hung is loaded again after this: each hang costs a thread until the pod ends."""


class Failures:
    """Remembers what failed, also while the registry is away."""

    def __init__(self, watch: ClusterWatch) -> None:
        self._watch = watch
        self._own: dict[str, LoadFailure] = {}

    def check(self, spec: ModelSpec) -> None:
        """Raise LoadFailed where the model was tried too recently."""
        failure = self._last(spec)
        if failure is None:
            return
        wait_s = failure.retry_at_s - self._watch.registry_now_s()
        if wait_s <= 0:
            return
        if failure.http_status != status_of(ModelTooLarge("")):
            raise LoadFailed(failure.message, retry_after_s=wait_s)
        if spec.key in self._own:  # another pod's budget says nothing about this one's
            raise ModelTooLarge(failure.message, retry_after_s=wait_s)

    def remember(self, spec: ModelSpec, error: LoadFailed) -> LoadFailure:
        """Record a failed load; the error then says when the next try is due."""
        now_s = self._watch.registry_now_s()
        fault = LoadFault(error.reason, str(error), status_of(error))
        failure = next_failure(spec.key, fault, previous=self._last(spec), now_s=now_s)
        self._own[spec.key] = failure
        error.retry_after_s = failure.retry_at_s - now_s
        return failure

    def remember_broken(self, key: str, reason: str) -> LoadFailure:
        """Record that an inference did not end: another try may cost another thread."""
        failure = LoadFailure(
            key=key,
            reason=ModelBroken.reason,
            message=reason,
            attempts=1,
            retry_at_s=self._watch.registry_now_s() + BROKEN_PAUSE_S,
        )
        self._own[key] = failure
        return failure

    def forget(self, key: str) -> None:
        """The model loaded after all."""
        self._own.pop(key, None)

    def _last(self, spec: ModelSpec) -> LoadFailure | None:
        """The last failure here, or of any pod of the pool."""
        own = self._own.get(spec.key)
        record = self._watch.state.models.get(spec.name)
        shared = record.failure if record is not None else None
        if shared is None or shared.key != spec.key:
            return own
        return shared if own is None or shared.retry_at_s > own.retry_at_s else own
