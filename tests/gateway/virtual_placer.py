"""A placer in virtual time, with replies to reservations as the test orders them."""

import itertools
from collections import deque
from collections.abc import Callable

from gateway.dispatch.pending_placement import PendingPlacement, PlacementDriver
from gateway.dispatch.placer import Placer
from gateway.errors import Rejected
from gateway.routing.decision import Decision, SendTo
from gateway.routing.route_request import IncomingRequest
from load.simulator.event_queue import EventQueue
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelSpec
from tests.gateway.cluster_states import NOW_S


class VirtualPlacer(PlacementDriver[PendingPlacement]):
    """A placer and its driver; reservations are granted unless `replies` has another reply."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.events = EventQueue()
        self.events.now_s = NOW_S
        self.placer: Placer[PendingPlacement] = Placer(
            state,
            self,
            self.events,
            self.events.now,
            lambda _, result, *__: self.decisions.append(result.decision),
        )
        self.decisions: list[Decision] = []
        self.replies: deque[bool | None] = deque()
        self.reserved_s: list[float] = []
        """Times of all reservations, from the start."""
        self.placed: list[PendingPlacement] = []
        self.released: list[PendingPlacement] = []
        self.errors: list[Rejected] = []
        self._sequence = itertools.count()

    def reserve(
        self,
        placement: PendingPlacement,
        decision: SendTo,
        on_reply: Callable[[PendingPlacement, bool], None],
    ) -> bool | None:
        del on_reply  # the test replies
        self.reserved_s.append(round(self.events.now_s - NOW_S, 6))
        is_granted = self.replies.popleft() if self.replies else True
        if is_granted:
            self.state.pods[decision.entry].add_pending(slots=1, ongoing=1)
        return is_granted

    def release(self, placement: PendingPlacement) -> None:
        self.released.append(placement)

    def on_placed(self, placement: PendingPlacement) -> None:
        self.placed.append(placement)

    def on_rejected(self, placement: PendingPlacement, error: Rejected) -> None:
        self.errors.append(error)

    def place(self, spec: ModelSpec, *, deadline_in_s: float | None = None) -> PendingPlacement:
        now_s, number = self.events.now_s, next(self._sequence)
        deadline_s = None if deadline_in_s is None else now_s + deadline_in_s
        placement = PendingPlacement(
            IncomingRequest(f"r{number}", spec.name, now_s, 0.0, number, deadline_s=deadline_s)
        )
        error = self.placer.place(placement)
        if error is not None:
            self.on_rejected(placement, error)
        elif not placement.is_pending:
            self.on_placed(placement)
        return placement

    def end_request(self, pod: str) -> None:
        self.free_slot(pod)
        self.placer.notify_change()

    def free_slot(self, pod: str) -> None:
        self.state.pods[pod].add_pending(slots=-1, ongoing=-1)

    def run_for(self, seconds: float) -> None:
        end_s = self.events.now_s + seconds
        ended: list[None] = []
        self.events.at(end_s, ended.append)
        self.events.run_some(10_000, until=lambda: bool(ended))

    @property
    def is_idle(self) -> bool:
        """No timer is set."""
        return not self.events.run_some(1, until=lambda: False)
