"""The simulated gateway: the dispatcher's way of placing requests, in virtual time.

Decisions, the admission queue and the retry budget are the live gateway's own. Here waiting is an
event instead of a future, and the registry answers in no time.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from gateway.dispatch.admission_queue import rejection_error
from gateway.dispatch.retries import RetryBudget
from gateway.errors import Rejected
from gateway.routing.decision import SendTo, Wait
from gateway.routing.route_request import IncomingRequest, RoutingResult
from load.simulator.cluster.plan import ModelPlan
from load.simulator.pods.simulated_request import PodListener, RequestPod, SimulatedRequest
from load.simulator.queueing import QueueOptions, SimulatedQueue
from registry.domain.model import ModelName, ModelSpec
from registry.domain.reservation import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from load.simulator.arrivals import Row
    from load.simulator.event_queue import EventQueue
    from load.simulator.registry.memory_registry import MemoryRegistry
    from load.simulator.results.finished_requests import FinishedRequests
    from load.simulator.results.summary import Summary
    from registry.domain.model import RoutingPolicy, Tier

_MAX_IMMEDIATE_TRIES: Final = 4
_MAX_ATTEMPTS: Final = 10
_SUSPECT_S: Final = 1.0


class SimulatedGateway(PodListener):
    """One gateway before all pods."""

    def __init__(
        self,
        events: EventQueue,
        registry: MemoryRegistry,
        rows: FinishedRequests,
        summary: Summary,
        *,
        pods: Mapping[str, RequestPod],
        models: Mapping[ModelName, ModelPlan],
        policy: RoutingPolicy | None,
        seed: int,
        queueing: QueueOptions | None = None,
        draws: Iterator[float] | None = None,
    ) -> None:
        queueing = queueing or QueueOptions()
        self.open_total = 0
        """Requests that came and have no response yet."""
        self.on_arrival: Callable[[ModelName, float], None] | None = None
        """Called for each request for a declared model."""
        self._events = events
        self._registry = registry
        self._state = registry.state
        self._rows = rows
        self._summary = summary
        self._pods = pods
        self._models = {(name.namespace, name.name): (name, plan) for name, plan in models.items()}
        self._policy = policy
        self._draw = random.Random(seed).random if draws is None else draws.__next__
        self._id_prefix = f"{seed}-"
        self._row = -1
        """Of the trace, from 0, as a live run numbers its requests."""
        self._sequence = 0
        self._budget = RetryBudget()
        self._serves_late = queueing.serves_late
        self.queue = SimulatedQueue(
            events, registry.state, queueing, reserve=self._reserve, reject=self._reject
        )
        self._in_flight: dict[str, SimulatedRequest] = {}

    # Arrival

    def arrive(self, row: Row) -> None:
        """Take the next request of the trace."""
        now_s, tenant, model, input_size, output_size, deadline_s = row
        self.open_total += 1
        self._row += 1
        id_ = self._id_prefix + str(self._row)
        found = self._models.get((tenant, model))
        if found is None:
            self._reject_unknown(id_, row)
            return
        name, plan = found
        if self.on_arrival is not None:
            self.on_arrival(name, now_s)
        self._sequence += 1
        self._budget.earn()
        if deadline_s is None:
            deadline_s = plan.spec.policy.deadline_s
        at_s = None if deadline_s is None else now_s + deadline_s
        arrival = IncomingRequest(
            id_, name, now_s, self._draw(), self._sequence, self._policy,
            None if self._serves_late else at_s, at_s,
        )  # fmt: skip
        request = SimulatedRequest(arrival, plan, input_size, output_size)
        if arrival.deadline_s is not None:
            self._events.at(arrival.deadline_s, self._deadline_passed, arrival)
        self._place(request)

    def _reject_unknown(self, id_: str, row: Row) -> None:
        now_s, tenant, model, input_size, output_size, deadline_s = row
        name = ModelName(tenant, model)
        arrival = IncomingRequest(id_, name, now_s, draw=0.0, sequence=0)
        request = SimulatedRequest(arrival, ModelPlan(ModelSpec(name, "")), input_size, output_size)
        self.open_total -= 1
        self._rows.add(
            request, finished_s=now_s, status=404, reason="model-not-found",
            error=f"model {name} does not exist", deadline_s=deadline_s,
        )  # fmt: skip

    # Placement

    def _place(self, request: SimulatedRequest) -> None:
        arrival = request.arrival
        for _ in range(_MAX_IMMEDIATE_TRIES):  # again if the state changed before the reservation
            if self.queue.is_changed:  # queued requests go first, so that tenants take turns
                self.queue.dispatch()
            decided = self.queue.admission.route(arrival)
            decision = decided.decision
            if isinstance(decision, SendTo):
                if self._reserve(request, decided, decision):
                    return
            elif isinstance(decision, Wait):
                break
            else:
                self._reject(request, rejection_error(decision))
                return
        self._enqueue(request, decided)

    def _reserve(self, request: SimulatedRequest, decided: RoutingResult, decision: SendTo) -> bool:
        arrival, spec = request.arrival, decided.spec
        if spec is None:
            return False
        now_s = self._events.now_s
        granted = self._registry.reserve(
            arrival.id, decision.entry, decision.predict, spec.key, decision.mode, now_s,
            max_other_copies=decision.max_other_copies, target_ongoing=decision.target_ongoing,
        )  # fmt: skip
        if isinstance(granted, Refusal):
            return False
        request.policy = decided.policy
        request.reason = decision.reason
        request.placed_s = now_s
        request.token = granted.load_token
        request.entry = entry = self._pods[decision.entry]
        request.predict = self._pods[decision.predict]
        self._in_flight[arrival.id] = request
        if entry.agent.is_alive:
            entry.take(request)
        else:
            self._mark_suspect(entry)
            self._events.after(0.0, self._retry, request)  # once it has left the queue
        return True

    def _release(self, request: SimulatedRequest) -> None:
        id_ = request.arrival.id
        self._in_flight.pop(id_, None)
        self._registry.pods.release(id_, request.entry.name, request.predict.name)

    def _enqueue(self, request: SimulatedRequest, decided: RoutingResult) -> None:
        try:
            self.queue.enter(request, decided)
        except Rejected as error:
            self._reject(request, error)
        else:
            request.policy = decided.policy
            self._in_flight[request.arrival.id] = request

    # Reports of pods

    def on_change(self) -> None:
        self.queue.on_change()

    def on_response(self, request: SimulatedRequest) -> None:
        self._release(request)
        self._finish(request, 200, None)
        self.on_change()

    def on_error(self, request: SimulatedRequest, status: int, message: str) -> None:
        self._release(request)
        self._finish(request, status, message)
        self.on_change()

    def on_no_memory(self, request: SimulatedRequest) -> None:
        self._retry(request)
        self.on_change()

    def on_unreachable(self, request: SimulatedRequest) -> None:
        if not request.is_over:
            message = f"predict pod {request.predict.name} cannot be reached"
            self.on_error(request, 503, message)

    def on_load_start(self, key: str) -> None:
        self._summary.loads_started[key] += 1

    def on_load_end(self, source: Tier, seconds: float) -> None:
        self._summary.loaded(source, seconds)

    def on_pod_end(self, idle_byte_s: float) -> None:
        self._summary.wasted_memory_byte_s += idle_byte_s

    def on_pod_death(self, pod: RequestPod) -> None:
        self._mark_suspect(pod)
        for request in list(self._in_flight.values()):
            if request.placed_s < 0:
                continue
            if request.entry is pod:
                self._retry(request)
            elif request.predict is pod:
                self.on_unreachable(request)

    def _mark_suspect(self, pod: RequestPod) -> None:
        state = self._state.pods.get(pod.name)
        if state is None:
            return
        state.set_suspect(is_suspect=True)

        def trust_again(_: None) -> None:
            state.set_suspect(is_suspect=False)
            self.on_change()

        self._events.after(_SUSPECT_S, trust_again)

    def _retry(self, request: SimulatedRequest) -> None:
        """Place the request again, while the retry budget lasts."""
        if request.is_over:
            return
        self._release(request)
        if request.attempts >= _MAX_ATTEMPTS or not self._budget.spend():
            self._finish(request, 503, "the pod did not take the request; no retry is left")
        else:
            self._place(request.retry())

    # Responses

    def _deadline_passed(self, arrival: IncomingRequest) -> None:
        """Respond in the pod's place; in the queue the timeout ends at the deadline as well."""
        request = self._in_flight.get(arrival.id)
        if request is not None and request.placed_s >= 0:
            self._release(request)
            message = "the deadline passed before the pod responded"
            self._finish(request, 504, message, "deadline")
            self.on_change()

    def _reject(self, request: SimulatedRequest, error: Rejected) -> None:
        self._in_flight.pop(request.arrival.id, None)
        self._finish(request, int(error.status), str(error), str(error.reason))

    def _finish(
        self, request: SimulatedRequest, status: int, error: str | None, reason: str | None = None
    ) -> None:
        request.is_over = True
        self.open_total -= 1
        due_s, arrival_s = request.arrival.due_s, request.arrival.arrival_s
        self._rows.add(
            request, finished_s=self._events.now_s, status=status, reason=reason or request.reason,
            error=error, deadline_s=None if due_s is None else due_s - arrival_s,
        )  # fmt: skip
