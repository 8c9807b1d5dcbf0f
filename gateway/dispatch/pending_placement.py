"""A request that is being placed at a pod, and the interface that carries out placements."""

from collections.abc import Callable
from typing import Generic, TypeVar

from common.timers import Timer
from gateway.dispatch.fair_queue import QueueKey
from gateway.errors import Rejected
from gateway.routing.decision import Reason, SendTo
from gateway.routing.route_request import IncomingRequest
from registry.domain.model import ModelSpec
from registry.domain.pod_state import PlacedRequest


class PendingPlacement:
    """One attempt to place a request; mutable. Drivers add what they reserve.

    Attributes without a value in the constructor are set when the request is routed or queued.
    """

    __slots__ = (
        "arrival",
        "awaited_tier",
        "direct_tries",
        "enqueued_s",
        "is_pending",
        "is_planned",
        "is_probe",
        "place_at",
        "policy",
        "queue_key",
        "refusals",
        "spec",
        "timeout",
        "wait_reason",
        "work",
    )

    arrival: IncomingRequest
    awaited_tier: str | None
    """Source tier of the load that the queued request waited for; None: it waited for no load."""
    is_pending: bool
    """False once it is placed, rejected or cancelled."""
    is_planned: bool
    """A plan has chosen its pod: where that takes it no more, it is planned again."""
    is_probe: bool
    """It is expected to be late, and tried all the same."""
    direct_tries: int
    """Reservations tried before the request was queued."""
    queue_key: QueueKey | None
    """Place in the queue, also while a reservation is tried; None: the request was never queued."""
    policy: str | None
    """The policy that sent or queued the request; None: neither happened."""
    spec: ModelSpec
    """The model generation that the request was last routed to."""
    wait_reason: Reason
    enqueued_s: float
    refusals: int
    """Reservations that were refused after the request was queued."""
    timeout: Timer | None
    work: PlacedRequest | None
    """What the request is expected to take at its pods, from its reservation until it is over."""

    place_at: str
    """The pod that a scheduler of workflows has chosen; empty: none has."""

    def __init__(self, arrival: IncomingRequest, place_at: str = "") -> None:
        self.arrival = arrival
        self.place_at = place_at
        self.awaited_tier = None
        self.policy = None
        self.queue_key = None
        self.direct_tries = 0
        self.is_pending = True
        self.is_planned = False
        self.is_probe = False
        self.work = None

    def end_work(self, *, is_cancelled: bool = False) -> None:
        """Remove the request's work from its pods; drivers call it with each release.

        `is_cancelled`: the response was not read to its end, perhaps not begun: a device may still
        run the inference.
        """
        if self.work is not None:
            self.work.end(is_cancelled=is_cancelled)
            self.work = None


P = TypeVar("P", bound=PendingPlacement)


class PlacementDriver(Generic[P]):
    """Carries out the placer's decisions: against Redis, or in a simulated cluster."""

    def reserve(
        self, placement: P, decision: SendTo, on_reply: Callable[[P, bool], None]
    ) -> bool | None:
        """Reserve what a decision needs; False: refused, since the local state was outdated.

        None: `on_reply` is called later, with whether it is granted.
        """
        raise NotImplementedError

    def release(self, placement: P) -> None:
        """Release a reservation that was granted."""
        raise NotImplementedError

    def on_placed(self, placement: P) -> None:
        """A request that waited is placed."""
        raise NotImplementedError

    def on_rejected(self, placement: P, error: Rejected) -> None:
        """A request that waited is rejected."""
        raise NotImplementedError

    def before_dispatch(self) -> None:
        """Called before queued requests are tried."""
