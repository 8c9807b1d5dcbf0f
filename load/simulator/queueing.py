"""Queued requests in virtual time, around the live gateway's admission queue.

The dispatcher waits with futures and timers, this with events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.dispatch.admission_queue import AdmissionQueue, QueuedRequest, rejection_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.errors import Rejected
    from gateway.routing.decision import Reject, SendTo
    from gateway.routing.route_request import RoutingResult
    from load.simulator.event_queue import EventQueue
    from load.simulator.pods.simulated_request import SimulatedRequest
    from registry.domain.cluster import ClusterState

POLL_INTERVAL_S: Final = 0.25
"""As in `gateway.dispatch.dispatcher`: how often a queue is tried in which nothing changes."""


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """How the gateway of a run queues. The defaults are the live gateway's."""

    serves_late: bool = False
    """Serve requests past their deadline as well, as in Blinowski et al. 2024."""
    by_deadline: bool = True
    """The earliest deadline first; else by arrival."""
    plans_first: bool = False
    """While requests are queued, run the autoscaler after each change, before they are tried, so
    that it sees pods that have just become idle; else by the clock."""
    may_load: bool = True
    """Requests start loads; else only the autoscaler does, and they are queued."""


@dataclass(eq=False, slots=True)
class _QueuedSimulatedRequest(QueuedRequest):
    simulated: SimulatedRequest = field(kw_only=True)
    tries: int = 0
    """Reservations that the registry refused; -1 once it has left the queue."""


class SimulatedQueue:
    """The queue of one simulated gateway."""

    def __init__(
        self,
        events: EventQueue,
        state: ClusterState,
        options: QueueOptions,
        *,
        reserve: Callable[[SimulatedRequest, RoutingResult, SendTo], bool],
        reject: Callable[[SimulatedRequest, Rejected], None],
    ) -> None:
        """`reserve` places a request, False if the registry refuses; `reject` ends one."""
        self.before_dispatch: Callable[[], None] | None = None
        """Called after a change, before queued requests are tried."""
        self.admission: AdmissionQueue[_QueuedSimulatedRequest] = AdmissionQueue(
            state, events.now, by_deadline=options.by_deadline, may_load=options.may_load
        )
        self.is_changed = False
        """True if queued requests are to be tried before the next event's time."""
        self._events = events
        self._state = state
        self._reserve = reserve
        self._reject = reject
        self._is_polling = False

    def enter(self, request: SimulatedRequest, decided: RoutingResult) -> None:
        """Queue a request. Raises Rejected: its model is gone, or its queue is full."""
        spec, key = self.admission.admit(request.arrival)
        queued = _QueuedSimulatedRequest(request.arrival, key, simulated=request)
        self.admission.enqueue(queued, decided)
        self._events.after(self.admission.timeout_s(queued, spec), self._timed_out, queued)
        self.on_change()
        self._poll_later()

    def _timed_out(self, queued: _QueuedSimulatedRequest) -> None:
        if not queued.simulated.is_over and queued.tries >= 0:
            record = self._state.models.get(queued.request.model)
            spec = record.serving if record else queued.simulated.plan.spec
            error = self.admission.timeout_error(queued, spec)
            self._leave(queued)
            self._reject(queued.simulated, error)

    def _leave(self, queued: _QueuedSimulatedRequest) -> None:
        queued.tries = -1
        self.admission.remove(queued)

    def on_change(self) -> None:
        """Try queued requests once the events of this time are over."""
        if not self.is_changed and self.admission:
            self.is_changed = True
            self._events.at(self._events.now_s, self._dispatch_if_changed)

    def _dispatch_if_changed(self, _: None) -> None:
        if self.is_changed:
            self.dispatch()

    def _poll_later(self) -> None:
        if not self._is_polling:
            self._is_polling = True
            self._events.after(POLL_INTERVAL_S, self._poll)

    def _poll(self, _: None) -> None:
        self._is_polling = False
        if self.admission:
            self._poll_later()
            self.dispatch(only_if_free=False)

    def dispatch(self, *, only_if_free: bool = True) -> None:
        """Try queued requests; with `only_if_free` only while a pod has a free slot."""
        self.is_changed = False
        if self.before_dispatch is not None and self.admission:
            self.before_dispatch()
        self.admission.dispatch_ready(
            is_cancelled=_never, on_send=self._send, on_reject=self._refuse,
            only_if_free=only_if_free,
        )  # fmt: skip

    def _send(
        self, queued: _QueuedSimulatedRequest, decided: RoutingResult, decision: SendTo
    ) -> None:
        queued.simulated.waited_from = queued.awaited_tier
        if self._reserve(queued.simulated, decided, decision):
            self._leave(queued)
            return
        queued.tries += 1  # back off: the state that refused it needs time to change
        self._events.after(min(0.001 * 2**queued.tries, 0.1), self._return, queued)

    def _return(self, queued: _QueuedSimulatedRequest) -> None:
        if queued.tries >= 0:
            self.admission.requeue(queued)
            self.on_change()

    def _refuse(self, queued: _QueuedSimulatedRequest, decision: Reject) -> None:
        self._leave(queued)
        self._reject(queued.simulated, rejection_error(decision))


def _never(_: _QueuedSimulatedRequest) -> bool:
    return False
