"""The simulated gateway: the dispatcher's way of placing requests, in virtual time.

Decisions, the waiting line and the retry budget are the live gateway's own; what differs is that
waiting is events instead of futures, and that the registry answers in no time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.dispatch.admission_queue import AdmissionQueue, QueuedRequest, rejection_error
from gateway.dispatch.retries import RetryBudget
from gateway.errors import Rejected
from gateway.routing.decision import Reject, SendTo, Wait
from gateway.routing.route_request import IncomingRequest, RoutingResult
from load.simulator.queue_options import QueueOptions
from load.simulator.results.rows import NEVER_S
from load.simulator.simulated_request import SimulatedRequest
from registry.domain.model import ModelName
from registry.domain.reservation import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from load.simulator.arrivals import Row
    from load.simulator.cluster.plan import ModelPlan
    from load.simulator.event_queue import EventQueue
    from load.simulator.memory_registry import MemoryRegistry
    from load.simulator.pod import SimulatedPod
    from load.simulator.results.rows import Rows
    from load.simulator.results.summary import Summary
    from registry.domain.demand import QueueStats
    from registry.domain.model import RoutingPolicy, Tier

LOOK_AGAIN_S: Final = 0.25
"""As in `gateway.dispatch.dispatcher`: a quiet waiting room is looked at this often."""
_DIRECT_TRIES: Final = 4
_MOST_TRIES: Final = 10
_SUSPECT_S: Final = 1.0
_MODEL_NOT_FOUND: Final = "model-not-found"


@dataclass(eq=False, slots=True)
class _QueuedSimulatedRequest(QueuedRequest):
    flight: SimulatedRequest = field(kw_only=True)
    tries: int = 0


class SimulatedGateway:
    """One gateway before all pods."""

    def __init__(
        self,
        kernel: EventQueue,
        registry: MemoryRegistry,
        rows: Rows,
        summary: Summary,
        *,
        policy: RoutingPolicy | None,
        seed: int,
        queueing: QueueOptions | None = None,
        draws: Iterator[float] | None = None,
    ) -> None:
        queueing = queueing or QueueOptions()
        self.pods: dict[str, SimulatedPod] = {}
        self.models: dict[tuple[str, str], tuple[ModelName, ModelPlan]] = {}
        """What is known by tenant and name."""
        self.open_total = 0
        """Requests that came and are not answered."""
        self.on_arrival: Callable[[ModelName, float], None] | None = None
        """Told of each request for a declared model."""
        self.before_placing: Callable[[], None] | None = None
        """Called when something changed, before those who wait are looked at."""
        self.wasted_memory_byte_s = 0.0
        """Of pods that have ended: bytes of idle models on the device times seconds."""
        self._kernel = kernel
        self._registry = registry
        self._state = registry.state
        self._rows = rows
        self._summary = summary
        self._policy = policy
        self._draw = random.Random(seed).random if draws is None else draws.__next__
        self._id_prefix = f"{seed}-"
        self._row = -1
        """Of the trace, from 0, as a live run numbers its requests."""
        self._sequence = 0
        self._budget = RetryBudget()
        self._serves_late = queueing.serves_late
        self._line: AdmissionQueue[_QueuedSimulatedRequest] = AdmissionQueue(
            registry.state, kernel.now, by_deadline=queueing.by_deadline, may_load=queueing.may_load
        )
        self._is_changed = False
        self._is_looking = False
        self._in_flight: dict[str, SimulatedRequest] = {}

    # Arrival

    def arrive(self, row: Row) -> None:
        """A request comes in."""
        now_s, tenant, model, input_size, output_size, deadline_s = row
        self.open_total += 1
        self._row += 1
        found = self.models.get((tenant, model))
        if found is None:
            self._not_found(row)
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
            self._id_prefix + str(self._row),
            name,
            now_s,
            self._draw(),
            self._sequence,
            self._policy,
            None if self._serves_late else at_s,
            at_s,
        )
        flight = SimulatedRequest(arrival, plan, input_size, output_size)
        if arrival.deadline_s is not None:
            self._kernel.at(arrival.deadline_s, self._deadline, arrival)
        self._place(flight)

    def _not_found(self, row: Row) -> None:
        now_s, tenant, model, input_size, output_size, deadline_s = row
        self.open_total -= 1
        self._rows.add(
            request_id=f"{self._id_prefix}{self._row}", model=ModelName(tenant, model), policy=None,
            arrival_s=now_s, placed_s=NEVER_S, finished_s=now_s, status=404,
            reason=_MODEL_NOT_FOUND, error=f"model {tenant}/{model} does not exist",
            entry_pod=None, predict_pod=None, start=None,
            load_s=0.0, preprocess_s=0.0, infer_s=0.0, postprocess_s=0.0,
            input_size=input_size, output_size=output_size, deadline_s=deadline_s,
        )  # fmt: skip

    # Placing

    def _place(self, flight: SimulatedRequest) -> None:
        arrival = flight.arrival
        for _ in range(_DIRECT_TRIES):  # decide and reserve again where the state had changed
            if self._is_changed:  # who waits goes first, so that tenants take turns
                self._pump()
            decided = self._line.route(arrival)
            decision = decided.decision
            if isinstance(decision, SendTo):
                if self._reserve(flight, decided, decision):
                    return
            elif isinstance(decision, Wait):
                break
            else:
                self._reject(flight, rejection_error(decision))
                return
        self._wait(flight, decided)

    def _reserve(self, flight: SimulatedRequest, decided: RoutingResult, decision: SendTo) -> bool:
        arrival, spec = flight.arrival, decided.spec
        if spec is None:
            return False
        now_s = self._kernel.now_s
        taken = self._registry.reserve(
            arrival.id,
            decision.entry,
            decision.predict,
            spec.key,
            decision.mode,
            now_s,
            max_other_copies=decision.max_other_copies,
            target_ongoing=decision.target_ongoing,
        )
        if isinstance(taken, Refusal):
            return False
        flight.policy = decided.policy
        flight.reason = decision.reason
        flight.placed_s = now_s
        flight.token = taken.load_token
        flight.entry = entry = self.pods[decision.entry]
        flight.predict = self.pods[decision.predict]
        self._in_flight[arrival.id] = flight
        if not entry.is_alive:
            self._suspect(entry)
            self._kernel.after(0.0, self._again, flight)  # once it is out of the line
            return True
        entry.take(flight)
        return True

    def _give_back(self, flight: SimulatedRequest) -> None:
        id_ = flight.arrival.id
        self._in_flight.pop(id_, None)
        self._registry.release(id_, flight.entry.name, flight.predict.name)

    # Waiting

    def _wait(self, flight: SimulatedRequest, decided: RoutingResult) -> None:
        arrival = flight.arrival
        try:
            spec, place = self._line.admit(arrival)
        except Rejected as error:
            self._reject(flight, error)
            return
        waiter = _QueuedSimulatedRequest(arrival, place, flight=flight)
        self._line.enqueue(waiter, decided)
        flight.policy = decided.policy
        self._in_flight[arrival.id] = flight
        self._kernel.after(self._line.timeout_s(waiter, spec), self._ran_out, waiter)
        self.kick()
        self._look_again()

    def _ran_out(self, waiter: _QueuedSimulatedRequest) -> None:
        if not waiter.flight.is_over and waiter.tries >= 0:
            record = self._state.models.get(waiter.request.model)
            spec = record.serving if record else waiter.flight.plan.spec
            error = self._line.timeout_error(waiter, spec)
            self._leave(waiter)
            self._reject(waiter.flight, error)

    def _leave(self, waiter: _QueuedSimulatedRequest) -> None:
        waiter.tries = -1
        self._line.remove(waiter)

    def kick(self) -> None:
        """Something changed: whoever waits may have a place now."""
        if not self._is_changed and self._line:
            self._is_changed = True
            self._kernel.at(self._kernel.now_s, self._pump_if_changed)

    def _pump_if_changed(self, _: None) -> None:
        if self._is_changed:
            self._pump()

    def _look_again(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._kernel.after(LOOK_AGAIN_S, self._look)

    def _look(self, _: None) -> None:
        self._is_looking = False
        if self._line:
            self._look_again()
            self._pump(only_if_free=False)

    def _pump(self, *, only_if_free: bool = True) -> None:
        self._is_changed = False
        if self.before_placing is not None and self._line:
            self.before_placing()
        self._line.dispatch_ready(
            is_cancelled=_never,
            on_send=self._send,
            on_reject=self._refuse,
            only_if_free=only_if_free,
        )

    def _send(
        self, waiter: _QueuedSimulatedRequest, decided: RoutingResult, decision: SendTo
    ) -> None:
        waiter.flight.waited_from = waiter.awaited_tier
        if self._reserve(waiter.flight, decided, decision):
            self._leave(waiter)
            return
        waiter.tries += 1  # give what will mend it time to come
        self._kernel.after(min(0.001 * 2**waiter.tries, 0.1), self._return, waiter)

    def _return(self, waiter: _QueuedSimulatedRequest) -> None:
        if waiter.tries >= 0:
            self._line.requeue(waiter)
            self.kick()

    def _refuse(self, waiter: _QueuedSimulatedRequest, decision: Reject) -> None:
        self._leave(waiter)
        self._reject(waiter.flight, rejection_error(decision))

    @property
    def is_waiting(self) -> bool:
        """Whether anybody waits."""
        return bool(self._line)

    def waiting(self) -> dict[ModelName, QueueStats]:
        """Who waits, by model."""
        return self._line.stats()

    # What pods say

    def answered(self, flight: SimulatedRequest) -> None:
        """The answer is here: give the slot back, and tell the client."""
        self._give_back(flight)
        self._finish(flight, 200, None)
        self.kick()

    def failed(self, flight: SimulatedRequest, status: int, message: str) -> None:
        """The pod answered with an error."""
        self._give_back(flight)
        self._finish(flight, status, message)
        self.kick()

    def refused(self, flight: SimulatedRequest) -> None:
        """Models in use hold the pod's memory: elsewhere, while the retry budget lasts."""
        self._again(flight)
        self.kick()

    def lost(self, flight: SimulatedRequest) -> None:
        """The predict pod did not answer its entry pod."""
        if not flight.is_over:
            self.failed(flight, 503, f"predict pod {flight.predict.name} is not to be reached")

    def load_begun(self, key: str) -> None:
        """A pod begins to bring a model to its device."""
        self._summary.begun[key] += 1

    def loaded(self, source: Tier, seconds: float) -> None:
        """A pod has brought a model to its device."""
        self._summary.loaded(source, seconds)

    def pod_died(self, pod: SimulatedPod) -> None:
        """Connections broke: what was at the pod goes elsewhere, while the retry budget lasts."""
        self._suspect(pod)
        for flight in list(self._in_flight.values()):
            if not flight.placed_s >= 0:
                continue
            if flight.entry is pod:
                self._again(flight)
            elif flight.predict is pod:
                self.lost(flight)

    def _suspect(self, pod: SimulatedPod) -> None:
        state = self._state.pods.get(pod.name)
        if state is None:
            return
        state.is_suspect = True

        def forgive(_: None) -> None:
            state.is_suspect = False
            self.kick()

        self._kernel.after(_SUSPECT_S, forgive)

    def _again(self, flight: SimulatedRequest) -> None:
        if flight.is_over:
            return
        self._give_back(flight)
        if flight.tries >= _MOST_TRIES or not self._budget.spend():
            self._finish(flight, 503, "the pod did not take the request; no retry is left")
        else:
            self._place(flight.again())

    def _deadline(self, arrival: IncomingRequest) -> None:
        """The gateway answers for the pod; who waits in line hears it there."""
        flight = self._in_flight.get(arrival.id)
        if flight is not None and flight.placed_s >= 0:
            self._give_back(flight)
            self._finish(flight, 504, "the deadline passed before the pod answered", "deadline")
            self.kick()

    def _reject(self, flight: SimulatedRequest, error: Rejected) -> None:
        self._in_flight.pop(flight.arrival.id, None)
        self._finish(flight, int(error.status), str(error), str(error.reason))

    # The end

    def _finish(
        self, flight: SimulatedRequest, status: int, error: str | None, reason: str | None = None
    ) -> None:
        flight.is_over = True
        self.open_total -= 1
        now_s, arrival = self._kernel.now_s, flight.arrival
        entry = predict = start = None
        if flight.placed_s >= 0:
            entry, predict, start = flight.entry.name, flight.predict.name, flight.start
            if start == "warm" and flight.waited_from:
                start = flight.waited_from
        arrival_s, due_s = arrival.arrival_s, arrival.due_s
        self._rows.add(
            request_id=arrival.id, model=arrival.model, policy=flight.policy,
            arrival_s=arrival_s, placed_s=flight.placed_s, finished_s=now_s, status=status,
            reason=reason or flight.reason, error=error,
            entry_pod=entry, predict_pod=predict, start=start or None,
            load_s=flight.load_s, preprocess_s=flight.preprocess_s, infer_s=flight.infer_s,
            postprocess_s=flight.postprocess_s,
            input_size=flight.input_size, output_size=flight.output_size,
            deadline_s=None if due_s is None else due_s - arrival_s,
        )  # fmt: skip


def _never(_: _QueuedSimulatedRequest) -> bool:
    return False
