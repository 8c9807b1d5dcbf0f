"""Finds a place for each request: decide, reserve, or wait for a change and decide again.

One task owns the waiting room. A decision is made on the copy with no await inside; the reservation
that follows is checked by the registry, and a refusal leads to another decision on newer state.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.dispatch.admission_queue import AdmissionQueue, QueuedRequest, rejected, spec_of
from gateway.dispatch.reservations import Reservation
from gateway.routing.decision import Reject, SendTo, Wait
from gateway.routing.route_request import RoutingResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.dispatch.reservations import Reservations
    from gateway.routing.route_request import IncomingRequest
    from gateway.telemetry.explanations import Explanations
    from registry.domain.cluster import ClusterState
    from registry.domain.demand import QueueStats
    from registry.domain.model import ModelName, ModelSpec, RoutingPolicy
    from registry.domain.reservation import Refusal

LOOK_AGAIN_S: Final = 0.25
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


_Outcome = tuple[RoutingResult, "asyncio.Future[Reservation | Refusal]"]


@dataclass(eq=False, slots=True)
class _Waiter(QueuedRequest):
    turn: asyncio.Future[_Outcome] = field(kw_only=True)


class Dispatcher:
    """Places requests; `run` must be running for those that wait."""

    def __init__(
        self,
        state: ClusterState,
        reservations: Reservations,
        explanations: Explanations,
        now_s: Callable[[], float],
    ) -> None:
        self._reservations = reservations
        self._line: AdmissionQueue[_Waiter] = AdmissionQueue(
            state, now_s, lambda arrival, decided: explanations.record(arrival, decided, state)
        )
        self._changed = asyncio.Event()

    @property
    def waiting_total(self) -> int:
        """Requests in the waiting room."""
        return len(self._line)

    def waiting_by_model(self) -> dict[ModelName, QueueStats]:
        """Who waits, by model."""
        return self._line.by_model()

    def kick(self) -> None:
        """Something changed: whoever waits may have a place now."""
        if self._line:
            self._changed.set()

    async def place(self, arrival: IncomingRequest) -> Placement:
        """Reserve a place for a request, waiting for one if its policy says so.

        Raises:
            Rejected: when it is not to be had, with the reason.
        """
        for _ in range(_DIRECT_TRIES):
            if self._changed.is_set():  # who waits goes first, so that tenants take turns
                self._changed.clear()
                self._pump(only_if_free=True)
            decided = self._line.decide(arrival)
            if isinstance(decided.decision, Wait):
                break
            decision, key = _sendable(decided), spec_of(decided).key
            if brief := self._reservations.take_brief(decision, key):
                return _placement(decided, brief, None)
            outcome = self._reservations.take(decision, key)
            if isinstance(taken := await self._settled(outcome), Reservation):
                return _placement(decided, taken, None)
        return await self._wait(arrival, decided)

    async def run(self) -> None:
        """Serve the waiting room until cancelled."""
        loop = asyncio.get_running_loop()
        look_again_s = loop.time() + LOOK_AGAIN_S
        while True:
            is_quiet = False
            try:
                async with asyncio.timeout_at(look_again_s):
                    await self._changed.wait()
            except TimeoutError:
                is_quiet = True
                look_again_s = loop.time() + LOOK_AGAIN_S
            self._changed.clear()
            if self._line:
                self._pump(only_if_free=not is_quiet)

    # One request's view

    async def _wait(self, arrival: IncomingRequest, decided: RoutingResult) -> Placement:
        spec, place = self._line.admit(arrival)
        waiter = _Waiter(arrival, place, turn=asyncio.get_running_loop().create_future())
        self._line.enter(waiter, decided)
        self._changed.set()
        try:
            async with asyncio.timeout(self._line.patience_s(waiter, spec)):
                return await self._await_turn(waiter)
        except TimeoutError:
            raise self._line.ran_out(waiter, spec) from None
        finally:
            self._line.leave(waiter)
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
            self._line.return_to_place(waiter)
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

    # The waiting room

    def _pump(self, *, only_if_free: bool) -> None:
        """Give those a turn whose place is free now."""
        self._line.pump(
            is_leaving=_is_leaving, send=self._send, refuse=_refuse, only_if_free=only_if_free
        )

    def _send(self, waiter: _Waiter, decided: RoutingResult, decision: SendTo) -> None:
        outcome = self._reservations.take(decision, spec_of(decided).key)
        waiter.turn.set_result((decided, outcome))


def _is_leaving(waiter: _Waiter) -> bool:
    """Whether it was cancelled, and has not run since."""
    return waiter.turn.done()


def _refuse(waiter: _Waiter, decision: Reject) -> None:
    waiter.turn.set_exception(rejected(decision))


def _sendable(decided: RoutingResult) -> SendTo:
    match decided.decision:
        case SendTo() as decision:
            return decision
        case Reject() as decision:
            raise rejected(decision)
        case Wait():
            raise AssertionError("a decision to wait is handled before")


def _placement(decided: RoutingResult, taken: Reservation, waited_from: str | None) -> Placement:
    policy = decided.policy or spec_of(decided).policy.routing
    return Placement(taken, _sendable(decided), policy, spec_of(decided), waited_from)
