"""Admission of requests to the queue, their order of dispatch, and their timeouts.

Pure bookkeeping around `route_request` and the fair queue, without tasks and with the clock passed
in: the dispatcher waits on futures, the simulator on events in virtual time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from gateway.dispatch.fair_queue import FairQueue, QueueKey, queue_key
from gateway.errors import Rejected
from gateway.routing.decision import Reason, Reject, SendTo, Wait
from gateway.routing.route_request import (
    IncomingRequest,
    RoutingResult,
    cannot_be_placed,
    route_request,
    uses_remote_proxy,
)
from gateway.routing.ski_rental import ColdStartCredit
from registry.domain.demand import QueueStats

if TYPE_CHECKING:
    from collections.abc import Callable

    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelName, ModelSpec


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """A request in the queue."""

    request: IncomingRequest
    key: QueueKey
    awaited_tier: str | None = None
    """The source tier of a load that it waited for; None if it waited for none."""
    wait_reason: Reason = field(default=Reason.QUEUE_NO_SLOT)
    """Reason of the last decision to wait."""
    enqueued_s: float = 0.0


Q = TypeVar("Q", bound=QueuedRequest)

STARVED_SHARE: Final = 0.6
"""Blinowski et al. 2024, 4.2.3: of the time from arrival to deadline."""
_EMPTY: Final = QueueStats(0, 0, inf)


class AdmissionQueue(Generic[Q]):
    """Queued requests and their routing. `state` must not change during a call."""

    def __init__(
        self,
        state: ClusterState,
        now_s: Callable[[], float],
        on_routed: Callable[[IncomingRequest, RoutingResult], None] | None = None,
        *,
        by_deadline: bool = True,
        may_load: bool = True,
    ) -> None:
        """Without `by_deadline` a queue is in order of arrival; `may_load`: see `route_request`."""
        self._by_deadline = by_deadline
        self._may_load = may_load
        self._state = state
        self._now_s = now_s
        self._on_routed = on_routed
        self._fair_queue = FairQueue()
        self._queued: dict[QueueKey, Q] = {}
        self._progress_s: dict[ModelName, float] = {}
        """By queued model: time at which its queue last became shorter, or began."""
        self._cold_start_credit = ColdStartCredit()

    def __len__(self) -> int:
        return self._fair_queue.size

    def route(self, request: IncomingRequest) -> RoutingResult:
        """Route a new request, which comes after the queued requests of its model."""
        model, now_s = request.model, self._now_s()
        ahead = self._fair_queue.depth(model.namespace, model.name) if self._queued else 0
        result = self._route(request, now_s, ahead)
        self._cold_start_credit.note(model, result.decision, now_s)
        return result

    def _route(self, request: IncomingRequest, now_s: float, ahead: int) -> RoutingResult:
        state = self._state
        progress_s = self._progress_s.get(request.model, now_s) if self._progress_s else now_s
        result = route_request(
            request, state.models, state, now_s=now_s, ahead=ahead, stalled_s=now_s - progress_s,
            lost_s=self._cold_start_credit.counted_s(request.model, now_s),
            may_load=self._may_load,
        )  # fmt: skip
        if self._on_routed is not None:
            self._on_routed(request, result)
        return result

    def stats(self) -> dict[ModelName, QueueStats]:
        """By model; requests past `STARVED_SHARE` of their time count as starved."""
        if not self._queued:
            return {}
        now_s = self._now_s()
        found: dict[ModelName, QueueStats] = {}
        for queued in self._queued.values():
            request = queued.request
            known = found.get(request.model, _EMPTY)
            found[request.model] = QueueStats(
                known.requests + 1,
                known.starved + _is_starved(request, now_s),
                min(known.oldest_s, request.arrival_s),
            )
        return found

    # Joining and leaving

    def admit(self, request: IncomingRequest) -> tuple[ModelSpec, QueueKey]:
        """The specification and key for the queue; raises Rejected: model gone or queue full."""
        record = self._state.models.get(request.model)
        if record is None:
            raise Rejected(Reason.MODEL_GONE, f"model {request.model} does not exist")
        spec = record.serving
        depth = self._fair_queue.depth(request.model.namespace, request.model.name)
        if depth >= spec.policy.queue_depth:
            hold_s = self._state.measured(spec.key).infer.seconds
            raise Rejected(
                Reason.QUEUE_FULL,
                f"{depth} requests of {request.model} are queued; queue-depth is "
                f"{spec.policy.queue_depth}",
                retry_after_s=max(1.0, depth * hold_s / max(1, len(self._state.pods))),
            )
        return spec, queue_key(
            tenant=request.model.namespace,
            model=request.model.name,
            sequence=request.sequence,
            priority=spec.policy.priority,
            deadline_s=_due_s(request) if self._by_deadline else None,
        )

    def enqueue(self, queued: Q, result: RoutingResult) -> None:
        """Queue an admitted request after its routing result."""
        if isinstance(result.decision, Wait):
            self._note_wait(queued, result, result.decision.reason)
        queued.enqueued_s = self._now_s()
        self._queued[queued.key] = queued
        self._progress_s.setdefault(queued.request.model, queued.enqueued_s)
        self._fair_queue.add(queued.key)

    def requeue(self, queued: Q) -> None:
        """Return a dispatched request whose reservation was refused to its old position."""
        self._fair_queue.add(queued.key)

    def remove(self, queued: Q) -> None:
        """Remove a request, dispatched or not."""
        key = queued.key
        self._fair_queue.remove(key)
        del self._queued[key]
        if not self._fair_queue.depth(key.tenant, key.model):
            self._progress_s.pop(queued.request.model, None)

    def timeout_s(self, queued: Q, spec: ModelSpec) -> float:
        """Longest time in the queue for a request enqueued just now."""
        deadline_s = queued.request.deadline_s
        left_s = inf if deadline_s is None else deadline_s - queued.enqueued_s
        return max(0.0, min(spec.policy.queue_timeout_s, left_s))

    def timeout_error(self, queued: Q, spec: ModelSpec) -> Rejected:
        """The error of a request past `timeout_s`: deadline or queue timeout, which was nearer.

        Not by the current time: the clock may have been set back, and timers fire early.
        """
        deadline_s = queued.request.deadline_s
        if deadline_s is not None and deadline_s - queued.enqueued_s <= spec.policy.queue_timeout_s:
            return Rejected(
                Reason.DEADLINE,
                f"the deadline passed in the queue ({queued.wait_reason}) before a pod accepted "
                "the request",
            )
        return Rejected(
            Reason.QUEUE_TIMEOUT,
            f"no pod accepted the request within queue-timeout {spec.policy.queue_timeout_s:g} s "
            f"({queued.wait_reason}); {len(self._state.pods)} pods",
        )

    # Dispatch

    def dispatch_ready(
        self,
        *,
        is_cancelled: Callable[[Q], bool],
        on_send: Callable[[Q, RoutingResult, SendTo], None],
        on_reject: Callable[[Q, Reject], None],
        only_if_free: bool = False,
    ) -> None:
        """Route the head of every queue in fair order; repeat as long as one is dispatched.

        Dispatched, rejected and cancelled requests are taken out before the callbacks. With
        `only_if_free` nothing is routed while no pod has a free slot, nor are requests that no free
        slot can help: with thousands queued, each freed slot would cost thousands of decisions. A
        request due for rejection is then rejected by a later call without `only_if_free`.
        """

        def try_dispatch(queued: Q) -> bool:
            if is_cancelled(queued):
                return self._fair_queue.remove(queued.key)
            result = self._route(queued.request, self._now_s(), 0)
            match result.decision:
                case Wait(reason=reason):
                    self._note_wait(queued, result, reason)
                    return False
                case Reject() as decision:
                    self._fair_queue.remove(queued.key)
                    on_reject(queued, decision)
                    return True
                case SendTo() as decision:
                    self._fair_queue.remove(queued.key)
                    self._fair_queue.end_turn(queued.key.tenant)
                    self._cold_start_credit.settle(queued.request.model, decision)
                    self._progress_s[queued.request.model] = self._now_s()
                    on_send(queued, result, decision)
                    return True

        while not (only_if_free and self._is_full()):
            heads = [self._queued[key] for key in self._fair_queue.heads()]
            if only_if_free:
                heads = self._placeable(heads)
            if not any(try_dispatch(queued) for queued in heads):
                break

    def _is_full(self) -> bool:
        return not any(pod.has_free_slot for pod in self._state.pods.values())

    def _placeable(self, heads: list[Q]) -> list[Q]:
        state = self._state
        if not any(uses_remote_proxy(each.request, state.models) for each in heads):
            return heads  # saves the minimum over all pods
        min_inferring = min([pod.inferring for pod in state.pods.values()], default=0)
        return [
            queued
            for queued in heads
            if not cannot_be_placed(
                queued.request, state.models, state,
                min_inferring=min_inferring, has_awaited_tier=queued.awaited_tier is not None,
            )
        ]  # fmt: skip

    def _note_wait(self, queued: Q, result: RoutingResult, reason: Reason) -> None:
        """Note why a request waits: one that waits for a load in progress is a cold start."""
        queued.wait_reason = reason
        if reason is Reason.QUEUE_WARMING and queued.awaited_tier is None:
            queued.awaited_tier = self._loading_tier(serving_spec(result).key)

    def _loading_tier(self, key: str) -> str:
        for residency in self._state.holders(key).values():
            if residency.loading_from is not None:
                return str(residency.loading_from)
        return "remote"


def _due_s(request: IncomingRequest) -> float | None:
    return request.due_s if request.deadline_s is None else request.deadline_s


def _is_starved(request: IncomingRequest, now_s: float) -> bool:
    due_s = _due_s(request)
    if due_s is None:
        return False
    return now_s - request.arrival_s > STARVED_SHARE * (due_s - request.arrival_s)


def rejection_error(decision: Reject) -> Rejected:
    return Rejected(
        decision.reason,
        decision.message,
        retry_after_s=decision.retry_after_s,
        http_status=decision.http_status,
    )


def serving_spec(result: RoutingResult) -> ModelSpec:
    """The generation that was routed to; raises Rejected if the model is gone."""
    if result.spec is None:
        raise Rejected(Reason.MODEL_GONE, "the model does not exist any more")
    return result.spec
