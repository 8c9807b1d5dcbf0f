"""Retries of requests that a pod did not execute: which ones, how often, and which pods to avoid.

A retry cannot have run at the first pod: there was no connection to it; the pod has refused the
request, or its queue-proxy did; or its process is gone, and any execution with it (`NotExecuted`).
After any other loss of a connection the client gets an error, unless the connection may have been
stale: then the request is sent again to the same pod, which refuses one that it has begun.

Source of the budget: the token form of Finagle's `RetryBudget`, so that a failing pool does not
receive many more requests than clients send: every request earns a part of a retry.
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from common.backoff import Backoff
from common.pod_responses import QueueProxyFailure
from common.timers import Timers
from gateway.dispatch.pending_placement import PendingPlacement
from gateway.errors import RequestLostPods
from gateway.routing.decision import SendTo
from registry.domain.cluster import ClusterState
from registry.domain.pod_state import LoadMode, PodState

MAX_ATTEMPTS: Final = 10
MAX_WAIT_SHARE: Final = 0.5
"""Of a request's deadline, after which it is not begun any more."""
_SUSPECT_S: Final = 1.0
DEVICE_FULL_S: Final = 0.1
"""Before a retry, so that inferences that fill a device's memory can end."""
_FULL: Final = Backoff(0.02, 0.5)


class OutlierDetection:
    """Marks pods to be avoided for a while after an error or refusal.

    The marks are in the cluster state; `on_recovery` is called when one is removed.
    """

    def __init__(self, timers: Timers, on_recovery: Callable[[], None]) -> None:
        self._timers = timers
        self._on_recovery = on_recovery
        self._suspicions: Counter[PodState] = Counter()
        """Those of each pod whose time is not over."""

    def avoid(self, pod: PodState) -> None:
        """Send nothing to the pod for a while, or until the registry reports it again."""
        self._suspect(pod)
        self._timers.after(_SUSPECT_S, self._trust, pod)

    @contextmanager
    def without(self, pod: PodState) -> Iterator[None]:
        """Decisions meanwhile are made without the pod; those of others come after them."""
        self._suspect(pod)
        try:
            yield
        finally:
            self._trust(pod)

    def _suspect(self, pod: PodState) -> None:
        self._suspicions[pod] += 1
        pod.set_suspect(is_suspect=True)

    def _trust(self, pod: PodState) -> None:
        """One suspicion is over: the pod is trusted after its last."""
        self._suspicions[pod] -= 1
        if not self._suspicions[pod]:
            del self._suspicions[pod]
            pod.set_suspect(is_suspect=False)
            self._on_recovery()

    def mark_full(self, pod: PodState, refusals: int) -> None:
        """Count all slots of the pod as taken for a backoff that grows with `refusals`."""
        slots = pod.slots
        pod.add_pending(slots=slots)
        self._timers.after(_FULL.pause_s(refusals + 1), self._free, (pod, slots))

    def _free(self, marked: tuple[PodState, int]) -> None:
        pod, slots = marked
        pod.add_pending(slots=-slots)
        self._on_recovery()


class NotExecuted(StrEnum):
    """Why a pod did not execute a request; the next attempt, at any pod, may succeed."""

    UNREACHABLE = "unreachable"
    PREDICT_UNREACHABLE = "predict-unreachable"
    """The entry pod has no connection to the predict pod."""
    POD_DIED = "pod-died"
    SLOTS = "slots"
    DRAINING = "draining"
    SECRET = "secret"
    """The pod does not accept the gateway's secret: one of both has not read the new one yet."""
    DEVICE_FULL = "device-full"
    """The device has no memory for the inference itself."""
    LOAD_FAILED = "load-failed"
    """Another pod has the model."""


_RETRIED: Final = {
    "slots": NotExecuted.SLOTS,
    "draining": NotExecuted.DRAINING,
    "secret": NotExecuted.SECRET,
    "unreachable": NotExecuted.PREDICT_UNREACHABLE,
}
BY_QUEUE_PROXY: Final = {
    QueueProxyFailure.FULL: NotExecuted.SLOTS,
    QueueProxyFailure.NOT_REACHED: NotExecuted.POD_DIED,
}
"""The reason by what a queue-proxy's response says; of others the pod may have begun."""


class RetryElsewhere(Exception):
    """The pod has not executed the request; another attempt may succeed."""

    def __init__(self, reason: NotExecuted, *, is_free: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_free = is_free
        """The refusal follows from an optimistic reservation: it costs no retry budget."""


@dataclass(slots=True)
class FailedAttempts:
    """Attempts of one request that no pod executed."""

    total: int = 0
    for_slots: int = 0
    """Attempts that cost a retry and failed for lack of a slot."""
    full_pod: PodState | None = None
    """Whose device had no memory for the inference."""


@dataclass(slots=True)
class RetryBudget:
    """Tokens; a retry costs one."""

    earned_per_request: float = 0.2
    max_tokens: float = 100.0
    tokens: float = 100.0

    def earn(self) -> None:
        if self.tokens < self.max_tokens:
            self.tokens = min(self.max_tokens, self.tokens + self.earned_per_request)

    def spend(self) -> bool:
        """Take a token; False if none is left."""
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


class Retries:
    """Decides about the next attempt of requests."""

    def __init__(self, health: OutlierDetection, cluster: ClusterState) -> None:
        self.health = health
        self._cluster = cluster
        self.budget = RetryBudget()

    def reason_after(
        self,
        refusal: str | None,
        failed: FailedAttempts,
        placement: PendingPlacement,
        decision: SendTo,
    ) -> NotExecuted | None:
        """As `refusal_to_retry`; also a failed load, while a pod that needs none has the model."""
        is_load = refusal in ("load-failed", "no-memory") and decision.mode is not LoadMode.WARM
        if is_load and not placement.place_at:
            warm = self._cluster.warm(placement.spec.key)
            if any(pod.name != decision.predict for pod in warm):
                return NotExecuted.LOAD_FAILED
        return refusal_to_retry(refusal, failed)

    def record_failure(
        self, failed: FailedAttempts, reason: NotExecuted, *, entry: PodState, predict: PodState
    ) -> None:
        """Avoid the pod that caused a failed attempt for a while."""
        match reason:
            case NotExecuted.DEVICE_FULL:
                failed.full_pod = predict  # others' inferences may be smaller
            case NotExecuted.PREDICT_UNREACHABLE:
                self.health.avoid(predict)
            case NotExecuted.SLOTS:
                self.health.mark_full(entry, failed.for_slots)
                failed.for_slots += 1
            case NotExecuted.LOAD_FAILED:
                pass  # the pod serves other models
            case _:
                self.health.avoid(entry)

    def take_retry(
        self, failed: FailedAttempts, reason: NotExecuted, *, is_free: bool = False
    ) -> str | None:
        """Take another attempt after a failed one; returns the error if there is none.

        `is_free`: it costs no retry budget.
        """
        failed.total += 1
        if not is_free and not self.budget.spend():
            return f"the pod did not accept the request ({reason}) and the retry budget is spent"
        if failed.total >= MAX_ATTEMPTS:
            return f"no pod accepted the request in {MAX_ATTEMPTS} attempts"
        return None


def refusal_to_retry(refusal: str | None, failed: FailedAttempts) -> NotExecuted | None:
    """The reason for another attempt after a pod's refusal; None: it is the client's response.

    Refusals that the request or its model caused are not retried, nor is an inference that two
    devices had no memory for: it is too large.
    """
    if refusal == "device-full" and failed.full_pod is None:
        return NotExecuted.DEVICE_FULL
    return _RETRIED.get(refusal or "")


MAX_PODS: Final = 2
PAUSE_S: Final = 300.0
TRIAL_S: Final = 5.0
_MAX_RECORDS: Final = 1024
_MAX_DIGESTED: Final = 1 << 20
"""Bytes of a body: about a millisecond."""


@dataclass(slots=True)
class _Record:
    size: int
    until_s: float
    first_loss: int
    """Number of the first loss; an attempt begun later was a risk taken knowingly."""
    is_proven: bool = False
    """True if an attempt begun after the first loss lost a pod too."""
    refused_until_s: float = 0.0
    pods: set[str] = field(default_factory=set)


class RequestQuarantine:
    """The pods lost with a request, by digest of its path, size and the body's beginning.

    A pod that dies takes innocent requests with it, so each of them is tried once more; one that
    lost two pods is refused for `PAUSE_S`. A response acquits a request and all others with the
    same body. Pods lost at the same moment, as with their node, prove nothing: one such request is
    tried again after `TRIAL_S`.
    """

    def __init__(self, now_s: Callable[[], float], pause_s: float = PAUSE_S) -> None:
        self._now_s = now_s
        self._pause_s = pause_s
        self.records: OrderedDict[bytes, _Record] = OrderedDict()
        """Without any, no request needs to be looked at."""
        self.losses = 0
        """Attempts so far, of any request, that lost their pod: one pod counts for each of them.

        A call remembers it when an attempt begins.
        """

    def check(self, path: bytes, body: Sequence[bytes], size: int) -> None:
        """Raises RequestLostPods for a request that lost two pods lately, but for one to try."""
        found = self._find(path, body, size)
        if found is None or len(found[1].pods) < MAX_PODS:
            return
        record, now_s = found[1], self._now_s()
        if now_s < record.refused_until_s:
            raise self._error(record)
        record.refused_until_s = now_s + TRIAL_S  # others wait for this one's response

    def record(
        self, path: bytes, body: Sequence[bytes], size: int, *, pod: str, begun: int
    ) -> None:
        """Count an attempt that lost its pod. Raises RequestLostPods from the second pod on.

        `begun`: `losses` when the attempt began.
        """
        self.losses += 1
        digest = _digest(path, body, size)
        now_s = self._now_s()
        record = self.records.pop(digest, None)
        if record is None or record.until_s <= now_s:
            record = _Record(size, now_s, self.losses)
        record.pods.add(pod)
        record.until_s = now_s + self._pause_s
        record.is_proven |= record.first_loss <= begun
        pause_s = self._pause_s if record.is_proven else min(TRIAL_S, self._pause_s)
        record.refused_until_s = now_s + pause_s
        self.records[digest] = record
        if len(self.records) > _MAX_RECORDS:
            self.records.popitem(last=False)
        if len(record.pods) >= MAX_PODS:
            raise self._error(record) from None

    def acquit(self, path: bytes, body: Sequence[bytes], size: int) -> None:
        """A pod has responded to such a request."""
        found = self._find(path, body, size)
        if found is not None:
            del self.records[found[0]]

    def _find(self, path: bytes, body: Sequence[bytes], size: int) -> tuple[bytes, _Record] | None:
        """The record, if any; computes a digest only if a record has the body's length."""
        if not self.records:
            return None
        now_s = self._now_s()
        while self.records and next(iter(self.records.values())).until_s <= now_s:
            self.records.popitem(last=False)
        if all(record.size != size for record in self.records.values()):
            return None
        digest = _digest(path, body, size)
        record = self.records.get(digest)
        return None if record is None else (digest, record)

    def _error(self, record: _Record) -> RequestLostPods:
        wait_s = max(0.0, record.refused_until_s - self._now_s())
        return RequestLostPods(
            f"{len(record.pods)} pods were lost with this request;"
            f" it is refused for {wait_s:.0f} s",
            retry_after_s=wait_s,
        )


def _digest(path: bytes, body: Sequence[bytes], size: int) -> bytes:
    digest, left = hashlib.sha256(b"%b %d " % (path, size)), _MAX_DIGESTED
    for chunk in body:
        digest.update(chunk[:left])
        left = max(0, left - len(chunk))
    return digest.digest()
