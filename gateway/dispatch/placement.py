"""What a live request holds once it is placed, and how it waits for that."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from gateway.dispatch.pending_placement import PendingPlacement
from gateway.dispatch.placer import Placer
from gateway.errors import Rejected
from gateway.request_task import RequestRun, waker
from gateway.routing.decision import SendTo
from gateway.routing.route_request import IncomingRequest
from registry.domain.pod_state import PodState, ReservationRequest


@dataclass(eq=False, slots=True)
class Reservation:
    """A slot at the entry pod, but for steps, and a place in the predict pod's inference stage."""

    id: str
    entry: PodState
    predict: PodState
    decision: SendTo
    key: str
    """Of the model generation."""
    load_token: int = 0
    takes_slot: bool = True
    """False: a step, in the entry pod's step queue."""
    is_local: bool = False
    """Counted only in the local state: optimistic, or made without Redis."""
    renewed_at_s: float = 0.0
    """Loop time at which it was taken or last renewed."""
    terms: ReservationRequest = field(init=False)
    """As the registry was asked; unset where it was not."""

    def outlives(self) -> None:
        """It lasts longer than expected of an optimistic one."""

    def add_pending(self, count: int) -> None:
        """Count it in the local state, or, below 0, no more."""
        slots = count if self.takes_slot else 0
        if self.entry is self.predict:
            self.entry.add_pending(slots=slots, ongoing=count)
        else:
            self.entry.add_pending(slots=slots)
            self.predict.add_pending(ongoing=count)


class Placement(PendingPlacement):
    __slots__ = ("decision", "error", "reservation", "wakeup")

    decision: SendTo
    reservation: Reservation
    error: Rejected | None
    wakeup: RequestRun | asyncio.Future[None] | None
    """Done when the request is placed or rejected; None unless it waits for that."""

    def __init__(self, arrival: IncomingRequest, place_at: str = "") -> None:
        super().__init__(arrival, place_at)
        self.error = None
        self.wakeup = None

    async def place(self, placer: Placer[Placement]) -> Placement:
        """Reserve a slot, after a time in the queue if the policy decides so. Raises Rejected."""
        self.error = placer.place(self)
        return await self.placed(placer)

    async def placed(self, placer: Placer[Placement]) -> Placement:
        """As `place`, after the placer's answer."""
        if self.error is None and self.is_pending:
            self.wakeup = waker(asyncio.get_running_loop())
            try:
                await self.wakeup
            except asyncio.CancelledError:  # perhaps just after it was placed
                if self.is_pending:
                    placer.cancel(self)
                elif self.error is None:
                    placer.release(self)
                raise
            finally:
                self.wakeup = None
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # kept here, or in a frame of its traceback, it would be a cycle
        return self

    def wake(self) -> None:
        if self.wakeup is not None and not self.wakeup.done():  # else it was cancelled meanwhile
            self.wakeup.set_result(None)
