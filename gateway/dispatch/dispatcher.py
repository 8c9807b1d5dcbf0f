"""Places requests in real time: the placer with reservations in Redis and the loop's timers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.dispatch.pending_placement import PendingPlacement, PlacementDriver
from gateway.dispatch.placed_at import planned_decision
from gateway.dispatch.placer import Placer
from gateway.dispatch.reservations import Reservation
from gateway.routing.route_request import RoutingResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.dispatch.reservations import Reservations
    from gateway.errors import Rejected
    from gateway.routing.decision import SendTo
    from gateway.routing.route_request import IncomingRequest
    from gateway.routing.timers import Timer
    from gateway.telemetry.explanations import Explanations
    from registry.domain.cluster import ClusterState
    from registry.domain.demand import QueueStats
    from registry.domain.model import ModelName
    from registry.domain.reservation import Refusal


class LoopTimers:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def after(self, delay_s: float, do: Callable[[Any], object], argument: Any, /) -> Timer:
        if delay_s > 0:
            return self._loop.call_later(delay_s, do, argument)
        return self._loop.call_soon(do, argument)


class PlanRefused(Exception):
    """The planned pod has no slot left, or is gone: the request is to be planned again."""


class Placement(PendingPlacement):
    """A request's reservation and the decision it follows from, once it is placed."""

    __slots__ = ("decision", "error", "is_planned", "reservation", "wakeup")

    decision: SendTo
    reservation: Reservation
    error: Rejected | PlanRefused | None
    is_planned: bool
    wakeup: asyncio.Future[None] | None
    """Done when the request is placed or rejected; None if it did not have to wait for that."""

    def __init__(self, arrival: IncomingRequest, place_at: str = "") -> None:
        super().__init__(arrival, place_at)
        self.error = None
        self.is_planned = False
        self.wakeup = None

    def take_error(self) -> Rejected | PlanRefused:
        """The error, which is not kept: with its traceback that would be a reference cycle."""
        error, self.error = self.error, None
        assert error is not None
        return error


class Dispatcher(PlacementDriver[Placement]):
    """Places requests for coroutines."""

    def __init__(
        self,
        state: ClusterState,
        reservations: Reservations,
        explanations: Explanations,
        now_s: Callable[[], float],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._now_s = now_s
        self._reservations = reservations
        self._placer = Placer(
            state, self, LoopTimers(), now_s,
            lambda request, result, now_s: explanations.record(request, result, state, now_s),
        )  # fmt: skip
        self._state = state
        self._explanations = explanations
        self.notify_change = self._placer.notify_change

    @property
    def queued_total(self) -> int:
        return self._placer.queued_total

    def queue_stats(self) -> dict[ModelName, QueueStats]:
        return self._placer.queue_stats()

    async def place(self, request: IncomingRequest) -> Placement:
        """Reserve a slot for a request, after a time in the queue if its policy decides so.

        Raises Rejected.
        """
        return await self.placed(self.begin(request))

    def begin(self, request: IncomingRequest, place_at: str = "") -> Placement:
        """As `place`; while the result `is_pending`, `placed` waits for it.

        `place_at`: the pod that a scheduler has chosen. Raises Rejected.
        """
        placement = Placement(request, place_at)
        error = self._placer.place(placement)
        if error is not None:
            raise error
        return placement

    async def place_planned(self, request: IncomingRequest, pod: str, policy: str) -> Placement:
        """Reserve a slot at the pod that a plan has chosen. Raises PlanRefused."""
        record = self._state.models.get(request.model)
        decision = None if record is None else planned_decision(record.serving, pod, self._state)
        if record is None or decision is None:
            raise PlanRefused
        placement = Placement(request)
        placement.is_planned, placement.policy = True, policy
        placement.spec, placement.decision = record.serving, decision
        self._explanations.record(
            request, RoutingResult(decision, None, record.serving), self._state, self._now_s()
        )
        is_granted = self._placer.place_planned(placement, decision)
        if is_granted is False:
            raise PlanRefused
        if is_granted:
            placement.is_pending = False
        return await self.placed(placement)

    async def placed(self, placement: Placement) -> Placement:
        if placement.is_pending:
            placement.wakeup = self._loop.create_future()
            try:
                await placement.wakeup
            except asyncio.CancelledError:
                self._cancel(placement)
                raise
        if placement.error is not None:
            raise placement.take_error()
        return placement

    def _cancel(self, placement: Placement) -> None:
        """The request's task was cancelled, perhaps just after its placement."""
        if placement.is_pending:
            self._placer.cancel(placement)
        elif placement.error is None:
            self.release(placement)

    # PlacementDriver

    def reserve(self, placement: Placement, decision: SendTo) -> bool | None:
        """Reserve, without the registry if a request is short and was not queued."""
        placement.decision = decision
        key = placement.spec.key
        if placement.queue_key is None:
            optimistic = self._reservations.reserve_optimistically(decision, key)
            if optimistic is not None:
                placement.reservation = optimistic
                return True
        is_sent = self._reservations.reserve(decision, key, partial(self._on_reply, placement))
        return None if is_sent else False

    def _on_reply(self, placement: Placement, reserved: Reservation | Refusal) -> None:
        if isinstance(reserved, Reservation):
            placement.reservation = reserved
            self._placer.on_reply(placement, is_granted=True)
        else:  # after the current callbacks, which may bring the update that led to the refusal
            self._loop.call_soon(self._on_refusal, placement)

    def _on_refusal(self, placement: Placement) -> None:
        if placement.is_planned:
            placement.end_work()
            if placement.is_pending:
                placement.is_pending = False
                placement.error = PlanRefused()
                _wake(placement)
            return
        self._placer.on_reply(placement, is_granted=False)

    def release(self, placement: Placement, *, is_cancelled: bool = False) -> None:
        placement.end_work(is_cancelled=is_cancelled)
        self._reservations.release(placement.reservation)
        self.notify_change()

    def on_placed(self, placement: Placement) -> None:
        _wake(placement)

    def on_rejected(self, placement: Placement, error: Rejected) -> None:
        placement.error = error
        _wake(placement)


def _wake(placement: Placement) -> None:
    if placement.wakeup is not None and not placement.wakeup.done():  # else it was cancelled
        placement.wakeup.set_result(None)
