"""Queued requests: which are admitted, which is dispatched next, which have waited too long.

Pure bookkeeping around `route_request` and the fair queue, without tasks and with the clock passed
in: the dispatcher waits with futures, the simulator with events of virtual time.
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
    is_proxied,
    route_request,
)
from gateway.routing.ski_rental import ColdStartCredit
from registry.domain.demand import QueueStats

if TYPE_CHECKING:
    from collections.abc import Callable

    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelName, ModelSpec


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """A request that waits. Mutable: what it waits for changes."""

    arrival: IncomingRequest
    key: QueueKey
    waited_from: str | None = None
    """The tier of a load that it waited for; None if it did not."""
    last: Reason = field(default=Reason.QUEUE_NO_SLOT)
    """Why it was last told to wait."""
    since_s: float = 0.0
    """When it entered the line."""


W = TypeVar("W", bound=QueuedRequest)

STARVED_SHARE: Final = 0.6
"""Blinowski et al. 2024, 4.2.3: of the time from arrival to deadline."""
_NOBODY: Final = QueueStats(0, 0, inf)


class AdmissionQueue(Generic[W]):
    """Who waits, and the decisions about them. `state` is read between changes only."""

    def __init__(
        self,
        state: ClusterState,
        now_s: Callable[[], float],
        on_decided: Callable[[IncomingRequest, RoutingResult], None] | None = None,
        *,
        by_deadline: bool = True,
        may_load: bool = True,
    ) -> None:
        """Without `by_deadline` queues are by arrival; for `may_load` see `route_request`."""
        self._by_deadline = by_deadline
        self._may_load = may_load
        self._state = state
        self._now_s = now_s
        self._on_decided = on_decided
        self._room = FairQueue()
        self._waiters: dict[QueueKey, W] = {}
        self._moved_s: dict[ModelName, float] = {}
        """Per model that is waited for: when its queue last moved."""
        self._losses = ColdStartCredit()

    def __len__(self) -> int:
        return self._room.size

    def decide(self, arrival: IncomingRequest) -> RoutingResult:
        """Decide about a newcomer, which comes after those of its model that wait."""
        model, now_s = arrival.model, self._now_s()
        ahead = self._room.depth(model.namespace, model.name) if self._waiters else 0
        decided = self._decide(arrival, now_s, ahead)
        self._losses.note(model, decided.decision, now_s)
        return decided

    def _decide(self, arrival: IncomingRequest, now_s: float, ahead: int) -> RoutingResult:
        state = self._state
        moved_s = self._moved_s.get(arrival.model, now_s) if self._moved_s else now_s
        decided = route_request(
            arrival, state.models, state, now_s=now_s, ahead=ahead, stalled_s=now_s - moved_s,
            lost_s=self._losses.counted_s(arrival.model, now_s), may_load=self._may_load,
        )  # fmt: skip
        if self._on_decided is not None:
            self._on_decided(arrival, decided)
        return decided

    def by_model(self) -> dict[ModelName, QueueStats]:
        """Who waits, by model: those past `STARVED_SHARE` of their time are starved."""
        if not self._waiters:
            return {}
        now_s = self._now_s()
        found: dict[ModelName, QueueStats] = {}
        for waiter in self._waiters.values():
            arrival = waiter.arrival
            known = found.get(arrival.model, _NOBODY)
            found[arrival.model] = QueueStats(
                known.requests + 1,
                known.starved + _is_starved(arrival, now_s),
                min(known.oldest_s, arrival.arrival_s),
            )
        return found

    # Joining and leaving

    def admit(self, arrival: IncomingRequest) -> tuple[ModelSpec, QueueKey]:
        """What a newcomer waits with; raises Rejected where its model is gone or its queue full."""
        record = self._state.models.get(arrival.model)
        if record is None:
            raise Rejected(Reason.MODEL_GONE, f"model {arrival.model} does not exist")
        spec = record.serving
        depth = self._room.depth(arrival.model.namespace, arrival.model.name)
        if depth >= spec.policy.queue_depth:
            hold_s = self._state.measured(spec.key).infer.seconds
            raise Rejected(
                Reason.QUEUE_FULL,
                f"{depth} requests of {arrival.model} wait already; queue-depth is "
                f"{spec.policy.queue_depth}",
                retry_after_s=max(1.0, depth * hold_s / max(1, len(self._state.pods))),
            )
        return spec, queue_key(
            tenant=arrival.model.namespace,
            model=arrival.model.name,
            sequence=arrival.sequence,
            priority=spec.policy.priority,
            deadline_s=_due_s(arrival) if self._by_deadline else None,
        )

    def enter(self, waiter: W, decided: RoutingResult) -> None:
        """Let an admitted request wait, for the reason that was decided."""
        if isinstance(decided.decision, Wait):
            self._waits(waiter, decided, decided.decision.reason)
        waiter.since_s = self._now_s()
        self._waiters[waiter.key] = waiter
        self._moved_s.setdefault(waiter.arrival.model, waiter.since_s)
        self._room.add(waiter.key)

    def return_to_place(self, waiter: W) -> None:
        """One that was taken out too early waits on at its old place."""
        self._room.add(waiter.key)

    def leave(self, waiter: W) -> None:
        """The request waits no more, wherever it stands."""
        place = waiter.key
        self._room.remove(place)
        del self._waiters[place]
        if not self._room.depth(place.tenant, place.model):
            self._moved_s.pop(waiter.arrival.model, None)

    def patience_s(self, waiter: W, spec: ModelSpec) -> float:
        """How long one that has just entered may wait."""
        deadline_s = waiter.arrival.deadline_s
        left_s = inf if deadline_s is None else deadline_s - waiter.since_s
        return max(0.0, min(spec.policy.queue_timeout_s, left_s))

    def ran_out(self, waiter: W, spec: ModelSpec) -> Rejected:
        """What a request is told that has waited as long as it may: which limit was the nearer.

        The clock is not asked: it may have been set back meanwhile, and timers fire early.
        """
        deadline_s = waiter.arrival.deadline_s
        if deadline_s is not None and deadline_s - waiter.since_s <= spec.policy.queue_timeout_s:
            return Rejected(
                Reason.DEADLINE,
                f"the deadline passed in the queue ({waiter.last}) before a pod could take it",
            )
        return Rejected(
            Reason.QUEUE_TIMEOUT,
            f"no pod could take the request within queue-timeout "
            f"{spec.policy.queue_timeout_s:g} s ({waiter.last}); {len(self._state.pods)} pods",
        )

    # Turns

    def pump(
        self,
        *,
        is_leaving: Callable[[W], bool],
        send: Callable[[W, RoutingResult, SendTo], None],
        refuse: Callable[[W, Reject], None],
        only_if_free: bool = False,
    ) -> None:
        """Try the head of every queue in fair order, again while anybody was placed.

        `send` and `refuse` are called for those that have been taken out; one that `is_leaving`
        is taken out and no more. With `only_if_free` nobody is tried while no pod has a free slot,
        since nobody could be sent: with thousands waiting, each slot that comes free would cost
        thousands of decisions in vain; nor are those that are held up whatever slots are free. Who
        is to be refused then hears it from a pump without.
        """

        def tries(waiter: W) -> bool:
            if is_leaving(waiter):
                return self._room.remove(waiter.key)
            decided = self._decide(waiter.arrival, self._now_s(), 0)
            match decided.decision:
                case Wait(reason=reason):
                    self._waits(waiter, decided, reason)
                    return False
                case Reject() as decision:
                    self._room.remove(waiter.key)
                    refuse(waiter, decision)
                    return True
                case SendTo() as decision:
                    self._room.remove(waiter.key)
                    self._room.took_turn(waiter.key.tenant)
                    self._losses.settle(waiter.arrival.model, decision)
                    self._moved_s[waiter.arrival.model] = self._now_s()
                    send(waiter, decided, decision)
                    return True

        while not (only_if_free and self._is_full()):
            heads = [self._waiters[place] for place in self._room.heads()]
            if only_if_free:
                heads = self._not_held_up(heads)
            if not any(tries(waiter) for waiter in heads):
                break

    def _is_full(self) -> bool:
        return not any(pod.has_free_slot for pod in self._state.pods.values())

    def _not_held_up(self, heads: list[W]) -> list[W]:
        state = self._state
        if not any(is_proxied(each.arrival, state.models) for each in heads):
            return heads  # the least of all pods is not looked for in vain
        least = min([pod.inferring for pod in state.pods.values()], default=0)
        return [
            waiter
            for waiter in heads
            if not cannot_be_placed(
                waiter.arrival, state.models, state,
                least_inferring=least, knows_load=waiter.waited_from is not None,
            )
        ]  # fmt: skip

    def _waits(self, waiter: W, decided: RoutingResult, reason: Reason) -> None:
        """Remember what a request waits for: a load under way makes it a cold start."""
        waiter.last = reason
        if reason is Reason.QUEUE_WARMING and waiter.waited_from is None:
            waiter.waited_from = self._tier_under_way(spec_of(decided).key)

    def _tier_under_way(self, key: str) -> str:
        for residency in self._state.holders(key).values():
            if residency.loading_from is not None:
                return str(residency.loading_from)
        return "remote"


def _due_s(arrival: IncomingRequest) -> float | None:
    return arrival.due_s if arrival.deadline_s is None else arrival.deadline_s


def _is_starved(arrival: IncomingRequest, now_s: float) -> bool:
    due_s = _due_s(arrival)
    if due_s is None:
        return False
    return now_s - arrival.arrival_s > STARVED_SHARE * (due_s - arrival.arrival_s)


def rejected(decision: Reject) -> Rejected:
    """A decision to reject as the error that answers the request."""
    return Rejected(
        decision.reason,
        decision.message,
        retry_after_s=decision.retry_after_s,
        http_status=decision.http_status,
    )


def spec_of(decided: RoutingResult) -> ModelSpec:
    """The generation that was decided about; raises Rejected where the model is gone."""
    if decided.spec is None:
        raise Rejected(Reason.MODEL_GONE, "the model does not exist any more")
    return decided.spec
