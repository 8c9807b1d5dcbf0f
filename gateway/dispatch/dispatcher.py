"""Places requests: route and reserve, or queue and retry when the cluster changes.

One task owns the queue. A decision is made on the local cluster state with no await inside; the
registry checks the reservation that follows, and a refusal leads to another decision on newer
state.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.dispatch.admission_queue import (
    AdmissionQueue,
    QueuedRequest,
    rejection_error,
    serving_spec,
)
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

POLL_INTERVAL_S: Final = 0.25
"""Forecasts change with time alone, so queued requests are routed again without a change."""
_MAX_DIRECT_ATTEMPTS: Final = 4
_FIRST_BACKOFF_S: Final = 0.001
_MAX_BACKOFF_S: Final = 0.1


@dataclass(slots=True)
class Placement:
    """A request's reservation and the decision it follows from."""

    reservation: Reservation
    decision: SendTo
    policy: RoutingPolicy
    spec: ModelSpec
    awaited_tier: str | None
    """The source tier of a load that the request waited for in the queue; None if none."""


_Dispatch = tuple[RoutingResult, "asyncio.Future[Reservation | Refusal]"]


@dataclass(eq=False, slots=True)
class _AwaitingRequest(QueuedRequest):
    dispatched: asyncio.Future[_Dispatch] = field(kw_only=True)


class Dispatcher:
    """Places requests; `run` must be running for those that are queued."""

    def __init__(
        self,
        state: ClusterState,
        reservations: Reservations,
        explanations: Explanations,
        now_s: Callable[[], float],
    ) -> None:
        self._reservations = reservations
        self._queue: AdmissionQueue[_AwaitingRequest] = AdmissionQueue(
            state, now_s, lambda request, result: explanations.record(request, result, state)
        )
        self._changed = asyncio.Event()

    @property
    def queued_total(self) -> int:
        return len(self._queue)

    def queue_stats(self) -> dict[ModelName, QueueStats]:
        return self._queue.stats()

    def notify_change(self) -> None:
        """Route queued requests again: the cluster changed."""
        if self._queue:
            self._changed.set()

    async def place(self, request: IncomingRequest) -> Placement:
        """Reserve a slot for a request, after a time in the queue if its policy decides so.

        Raises Rejected.
        """
        for _ in range(_MAX_DIRECT_ATTEMPTS):
            if self._changed.is_set():  # queued requests first, so that tenants take turns
                self._changed.clear()
                self._dispatch_ready(only_if_free=True)
            result = self._queue.route(request)
            if isinstance(result.decision, Wait):
                break
            decision, key = _send_decision(result), serving_spec(result).key
            if optimistic := self._reservations.reserve_optimistically(decision, key):
                return _placement(result, optimistic, None)
            pending = self._reservations.reserve(decision, key)
            if isinstance(reserved := await self._result_of(pending), Reservation):
                return _placement(result, reserved, None)
        return await self._enqueue(request, result)

    async def run(self) -> None:
        """Dispatch queued requests until cancelled."""
        loop = asyncio.get_running_loop()
        next_poll_s = loop.time() + POLL_INTERVAL_S
        while True:
            is_poll = False
            try:
                async with asyncio.timeout_at(next_poll_s):
                    await self._changed.wait()
            except TimeoutError:
                is_poll = True
                next_poll_s = loop.time() + POLL_INTERVAL_S
            self._changed.clear()
            if self._queue:
                self._dispatch_ready(only_if_free=not is_poll)

    # In the task of the request

    async def _enqueue(self, request: IncomingRequest, result: RoutingResult) -> Placement:
        spec, key = self._queue.admit(request)
        queued = _AwaitingRequest(
            request, key, dispatched=asyncio.get_running_loop().create_future()
        )
        self._queue.enqueue(queued, result)
        self._changed.set()
        try:
            async with asyncio.timeout(self._queue.timeout_s(queued, spec)):
                return await self._await_dispatch(queued)
        except TimeoutError:
            raise self._queue.timeout_error(queued, spec) from None
        finally:
            self._queue.remove(queued)
            self._cancel_dispatch(queued.dispatched)

    async def _await_dispatch(self, queued: _AwaitingRequest) -> Placement:
        refusals = 0
        while True:
            result, pending = await queued.dispatched
            queued.dispatched = asyncio.get_running_loop().create_future()
            if isinstance(reserved := await self._result_of(pending), Reservation):
                return _placement(result, reserved, queued.awaited_tier)
            refusals += 1  # the local state is outdated: wait for the update on its way
            await asyncio.sleep(min(_FIRST_BACKOFF_S * 2**refusals, _MAX_BACKOFF_S))
            self._queue.requeue(queued)
            self._changed.set()

    async def _result_of(
        self, pending: asyncio.Future[Reservation | Refusal]
    ) -> Reservation | Refusal:
        try:
            return await pending
        except asyncio.CancelledError:
            self._cancel_reservation(pending)
            raise

    def _cancel_reservation(self, pending: asyncio.Future[Reservation | Refusal]) -> None:
        """Release a reservation that was granted, or will be granted, to a cancelled request."""
        if not pending.cancel() and not pending.cancelled():
            reserved = pending.result()
            if isinstance(reserved, Reservation):
                self._reservations.release(reserved)

    def _cancel_dispatch(self, dispatched: asyncio.Future[_Dispatch]) -> None:
        """A request left the queue, perhaps just after its dispatch."""
        if (
            not dispatched.cancel()
            and not dispatched.cancelled()
            and dispatched.exception() is None
        ):
            self._cancel_reservation(dispatched.result()[1])

    # In the task that owns the queue

    def _dispatch_ready(self, *, only_if_free: bool) -> None:
        self._queue.dispatch_ready(
            is_cancelled=_is_cancelled,
            on_send=self._send,
            on_reject=_reject,
            only_if_free=only_if_free,
        )

    def _send(self, queued: _AwaitingRequest, result: RoutingResult, decision: SendTo) -> None:
        pending = self._reservations.reserve(decision, serving_spec(result).key)
        queued.dispatched.set_result((result, pending))


def _is_cancelled(queued: _AwaitingRequest) -> bool:
    """True if the request's task was cancelled and has not run since."""
    return queued.dispatched.done()


def _reject(queued: _AwaitingRequest, decision: Reject) -> None:
    queued.dispatched.set_exception(rejection_error(decision))


def _send_decision(result: RoutingResult) -> SendTo:
    match result.decision:
        case SendTo() as decision:
            return decision
        case Reject() as decision:
            raise rejection_error(decision)
        case Wait():
            raise AssertionError("a decision to wait is handled before")


def _placement(
    result: RoutingResult, reservation: Reservation, awaited_tier: str | None
) -> Placement:
    spec = serving_spec(result)
    policy = result.policy or spec.policy.routing
    return Placement(reservation, _send_decision(result), policy, spec, awaited_tier)
