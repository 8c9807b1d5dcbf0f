"""Finds a place for each request: decide, reserve, or wait for a change and decide again.

One task owns the waiting room. A decision is made on the copy with no await inside; the reservation
that follows is checked by the registry, and a refusal leads to another decision on newer state.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.decide import Arrival, Decided, decide
from gateway.errors import Rejected
from gateway.policies.decision import Reason, Reject, SendTo, Wait
from gateway.queueing import Ticket, WaitingRoom, ticket
from gateway.reservations import Reservation

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.explanations import Explanations
    from gateway.reservations import Reservations
    from registry.cluster import ClusterState
    from registry.model import ModelName, ModelSpec, RoutingPolicy
    from registry.reservation import Refusal

_LOOK_AGAIN_S: Final = 0.25
"""Forecasts change with time alone, so a quiet waiting room is looked at this often."""
_DIRECT_TRIES: Final = 4
_REFUSED_FIRST_S: Final = 0.001
_REFUSED_LONGEST_S: Final = 0.1


@dataclass(slots=True)
class Placement:
    """Where a request goes, and what that rests on."""

    reservation: Reservation
    decision: SendTo
    policy: RoutingPolicy
    spec: ModelSpec
    waited_from: str | None
    """The tier of a load the request waited for in the queue; None if it did not."""


_Outcome = tuple[Decided, "asyncio.Future[Reservation | Refusal]"]


@dataclass(eq=False, slots=True)
class _Waiter:
    arrival: Arrival
    ticket: Ticket
    turn: asyncio.Future[_Outcome]
    waited_from: str | None = None
    last: Reason = field(default=Reason.QUEUE_NO_SLOT)


class Dispatcher:
    """Places requests; `run` must be running for those that wait."""

    def __init__(
        self,
        state: ClusterState,
        reservations: Reservations,
        explanations: Explanations,
        now_s: Callable[[], float],
    ) -> None:
        self._state = state
        self._reservations = reservations
        self._explanations = explanations
        self._now_s = now_s
        self._room = WaitingRoom()
        self._waiters: dict[Ticket, _Waiter] = {}
        self._moved_s: dict[ModelName, float] = {}
        """Per model that is waited for: when its queue last moved."""
        self._changed = asyncio.Event()

    @property
    def waiting_total(self) -> int:
        """Requests in the waiting room."""
        return len(self._room)

    def kick(self) -> None:
        """Something changed: whoever waits may have a place now."""
        if self._room:
            self._changed.set()

    async def place(self, arrival: Arrival) -> Placement:
        """Reserve a place for a request, waiting for one if its policy says so.

        Raises:
            Rejected: when it is not to be had, with the reason.
        """
        for _ in range(_DIRECT_TRIES):
            if self._changed.is_set():  # who waits goes first, so that tenants take turns
                self._changed.clear()
                self._pump()
            ahead = self._room.depth(arrival.model.namespace, arrival.model.name)
            decided = self._decide(arrival, ahead)
            if isinstance(decided.decision, Wait):
                break
            decision, key = _sendable(decided), _spec(decided).key
            if brief := self._reservations.take_brief(decision, key):
                return _placement(decided, brief, None)
            outcome = self._reservations.take(decision, key)
            if isinstance(taken := await self._settled(outcome), Reservation):
                return _placement(decided, taken, None)
        return await self._wait(arrival, decided)

    async def run(self) -> None:
        """Serve the waiting room until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            if self._room:
                self._pump()

    # One request's view

    async def _wait(self, arrival: Arrival, decided: Decided) -> Placement:
        spec = self._admit(arrival)
        place = ticket(
            tenant=arrival.model.namespace,
            model=arrival.model.name,
            sequence=arrival.sequence,
            priority=spec.policy.priority,
            deadline_s=arrival.deadline_s,
        )
        loop = asyncio.get_running_loop()
        waiter = _Waiter(arrival, place, loop.create_future())
        if isinstance(decided.decision, Wait):
            self._waits(waiter, decided, decided.decision.reason)
        self._waiters[place] = waiter
        self._moved_s.setdefault(arrival.model, self._now_s())
        self._room.add(place)
        self._changed.set()
        try:
            async with asyncio.timeout(self._patience_s(arrival, spec)):
                return await self._await_turn(waiter)
        except TimeoutError:
            raise self._ran_out(waiter, spec) from None
        finally:
            self._room.remove(place)
            del self._waiters[place]
            if not self._room.depth(place.tenant, place.model):
                self._moved_s.pop(arrival.model, None)
            self._abandon(waiter.turn)

    async def _await_turn(self, waiter: _Waiter) -> Placement:
        refusals = 0
        while True:
            decided, outcome = await waiter.turn
            waiter.turn = asyncio.get_running_loop().create_future()
            if isinstance(taken := await self._settled(outcome), Reservation):
                return _placement(decided, taken, waiter.waited_from)
            refusals += 1  # the copy is behind: give the push that will mend it time to come
            await asyncio.sleep(min(_REFUSED_FIRST_S * 2**refusals, _REFUSED_LONGEST_S))
            self._room.add(waiter.ticket)
            self._changed.set()

    async def _settled(
        self, outcome: asyncio.Future[Reservation | Refusal]
    ) -> Reservation | Refusal:
        try:
            return await outcome
        except asyncio.CancelledError:
            self._forgo(outcome)
            raise

    def _forgo(self, outcome: asyncio.Future[Reservation | Refusal]) -> None:
        """Give back what a caller that has left was given, or is about to be given."""
        if not outcome.cancel() and not outcome.cancelled():
            taken = outcome.result()
            if isinstance(taken, Reservation):
                self._reservations.give_back(taken)

    def _abandon(self, turn: asyncio.Future[_Outcome]) -> None:
        """Whoever waited has left, perhaps just when its turn came."""
        if turn.cancel() or turn.cancelled() or turn.exception() is not None:
            return
        self._forgo(turn.result()[1])

    def _admit(self, arrival: Arrival) -> ModelSpec:
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
        return spec

    def _patience_s(self, arrival: Arrival, spec: ModelSpec) -> float:
        patience_s = spec.policy.queue_timeout_s
        if arrival.deadline_s is not None:
            patience_s = min(patience_s, arrival.deadline_s - self._now_s())
        return max(0.0, patience_s)

    def _ran_out(self, waiter: _Waiter, spec: ModelSpec) -> Rejected:
        arrival = waiter.arrival
        if arrival.deadline_s is not None and self._now_s() >= arrival.deadline_s - 0.001:
            return Rejected(
                Reason.DEADLINE,
                f"the deadline passed in the queue ({waiter.last}) before a pod could take it",
            )
        return Rejected(
            Reason.QUEUE_TIMEOUT,
            f"no pod could take the request within queue-timeout "
            f"{spec.policy.queue_timeout_s:g} s ({waiter.last}); {len(self._state.pods)} pods",
        )

    # The waiting room

    def _pump(self) -> None:
        """Try the head of every queue in fair order, again while anybody was placed."""
        while any(self._try(self._waiters[place]) for place in list(self._room.heads())):
            pass

    def _try(self, waiter: _Waiter) -> bool:
        if waiter.turn.done():  # it is leaving, and has not run since
            return self._room.remove(waiter.ticket)
        decided = self._decide(waiter.arrival)
        match decided.decision:
            case Wait(reason=reason):
                self._waits(waiter, decided, reason)
                return False
            case Reject() as decision:
                self._room.remove(waiter.ticket)
                waiter.turn.set_exception(_rejected(decision))
                return True
            case SendTo() as decision:
                self._room.remove(waiter.ticket)
                self._room.took_turn(waiter.ticket.tenant)
                self._moved_s[waiter.arrival.model] = self._now_s()
                outcome = self._reservations.take(decision, _spec(decided).key)
                waiter.turn.set_result((decided, outcome))
                return True

    def _waits(self, waiter: _Waiter, decided: Decided, reason: Reason) -> None:
        """Remember what a request waits for: a load under way makes it a cold start."""
        waiter.last = reason
        if reason is Reason.QUEUE_WARMING and waiter.waited_from is None:
            waiter.waited_from = self._tier_under_way(_spec(decided).key)

    def _tier_under_way(self, key: str) -> str:
        for residency in self._state.holders(key).values():
            if residency.loading_from is not None:
                return str(residency.loading_from)
        return "remote"

    def _decide(self, arrival: Arrival, ahead: int = 0) -> Decided:
        now_s = self._now_s()
        stalled_s = now_s - self._moved_s.get(arrival.model, now_s)
        decided = decide(
            arrival,
            self._state.models,
            self._state,
            now_s=now_s,
            ahead=ahead,
            stalled_s=stalled_s,
        )
        self._explanations.record(arrival, decided, self._state)
        return decided


def _sendable(decided: Decided) -> SendTo:
    match decided.decision:
        case SendTo() as decision:
            return decision
        case Reject() as decision:
            raise _rejected(decision)
        case Wait():
            raise AssertionError("a decision to wait is handled before")


def _rejected(decision: Reject) -> Rejected:
    return Rejected(
        decision.reason,
        decision.message,
        retry_after_s=decision.retry_after_s,
        http_status=decision.http_status,
    )


def _spec(decided: Decided) -> ModelSpec:
    if decided.spec is None:
        raise Rejected(Reason.MODEL_GONE, "the model does not exist any more")
    return decided.spec


def _placement(decided: Decided, taken: Reservation, waited_from: str | None) -> Placement:
    policy = decided.policy or _spec(decided).policy.routing
    return Placement(taken, _sendable(decided), policy, _spec(decided), waited_from)
