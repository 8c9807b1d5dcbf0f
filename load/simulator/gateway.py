"""The simulated gateway: the live gateway's placer in virtual time, with simulated pods.

Registry operations take no virtual time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gateway.dispatch.pending_placement import PlacementDriver
from gateway.dispatch.placer import Placer
from gateway.dispatch.retries import (
    FailedAttempts,
    NotExecuted,
    OutlierDetection,
    RequestQuarantine,
    Retries,
)
from gateway.errors import RequestLostPods
from gateway.routing.decision import Reason
from gateway.routing.route_request import IncomingRequest
from load.errors import LoadError
from load.schema import BLOCK_TOKENS
from load.simulator.cluster.plan import ModelPlan
from load.simulator.pods.simulated_request import BYTES_PER_ITEM, RequestPod, SimulatedRequest
from registry.domain.estimates import size_class
from registry.domain.model import ModelName, ModelSpec
from registry.domain.pod_state import Refusal
from registry.domain.prompt_prefixes import Prompt
from variants.live_window import NoUsableVariant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gateway.errors import Rejected
    from gateway.routing.decision import SendTo
    from load.simulator.applications import ApplicationArrival, SimulatedApplications
    from load.simulator.event_queue import EventQueue, Row
    from load.simulator.memory_registry import MemoryRegistry
    from load.simulator.records import FinishedRequests
    from load.simulator.run_summary import Summary
    from registry.domain.model import Tier
    from variants.open_windows import Selection


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Options of the gateway's queue. The defaults are the live gateway's."""

    serves_late: bool = False
    """Serve requests past their deadline as well, as in Blinowski et al. 2024."""
    by_deadline: bool = True
    """Dispatch the earliest deadline first; False: the earliest arrival first."""
    plans_first: bool = False
    """While requests are queued, run the autoscaler after each change and before dispatch, so that
    it sees pods that have just become idle; False: run it only at its tick interval."""
    may_load: bool = True
    """Requests may start loads; False: only the autoscaler starts loads, and requests queue."""
    placer: Callable[..., Placer[SimulatedRequest]] | None = None
    """Makes a placer in place of the live gateway's, from the same four arguments and `is_loading`,
    which says whether a pod loads a model now; the other options but `serves_late` and
    `plans_first` are then its own."""


class SimulatedGateway(PlacementDriver[SimulatedRequest]):
    """One gateway in front of all pods."""

    def __init__(
        self,
        events: EventQueue,
        registry: MemoryRegistry,
        rows: FinishedRequests,
        summary: Summary,
        *,
        pods: Mapping[str, RequestPod],
        models: Mapping[ModelName, ModelPlan],
        policy: str | None,
        seed: int,
        queueing: QueueOptions | None = None,
        draws: Iterator[float] | None = None,
        applications: SimulatedApplications | None = None,
    ) -> None:
        queueing = queueing or QueueOptions()
        self.open_total = 0
        """Requests that arrived and have no response yet."""
        self.on_arrival: Callable[[ModelName, float], None] | None = None
        """Called for each request for a declared model."""
        self.on_dispatch: Callable[[], None] | None = None
        """Called before queued requests are dispatched."""
        self._events = events
        self._registry = registry
        self._state = registry.state
        self._state.prefixes.block_tokens = BLOCK_TOKENS
        self._rows = rows
        self._summary = summary
        self._pods = pods
        self._models = {(name.namespace, name.name): (name, plan) for name, plan in models.items()}
        self._policy = policy
        self._draw = random.Random(seed).random if draws is None else draws.__next__
        self._id_prefix = f"{seed}-"
        self._row = -1
        """Row of the trace, from 0; a live run numbers its requests in the same way."""
        self._sequence = 0
        self._serves_late = queueing.serves_late
        self.placer: Placer[SimulatedRequest] = self._new_placer(queueing)
        self._retries = Retries(OutlierDetection(events, self.placer.notify_change), self._state)
        self._lost_pods = RequestQuarantine(events.now)
        self._in_flight: dict[str, SimulatedRequest] = {}
        """Placed requests by id."""
        self._applications = applications
        self._asked: dict[str, ApplicationArrival] = {}
        """Open requests to applications by id."""

    def _new_placer(self, queueing: QueueOptions) -> Placer[SimulatedRequest]:
        events, state = self._events, self._state
        if queueing.placer is not None:
            return queueing.placer(
                state, self, events, events.now, is_loading=lambda pod: self._pods[pod].is_loading
            )
        return Placer(
            state,
            self,
            events,
            events.now,
            by_deadline=queueing.by_deadline,
            may_load=queueing.may_load,
        )

    # Arrival

    def arrive(self, row: Row) -> None:
        """Place the next request of the trace, or respond 404 if its model is not declared."""
        now_s, tenant, model, input_size, output_size, deadline_s, blocks = row
        self.open_total += 1
        self._row += 1
        id_ = self._id_prefix + str(self._row)
        found = self._models.get((tenant, model))
        if found is None:
            if not self._arrive_at_application(id_, row):
                self._reject_unknown(id_, row)
            return
        name, plan = found
        if self.on_arrival is not None:
            self.on_arrival(name, now_s)
        self._sequence += 1
        self._retries.budget.earn()
        if deadline_s is None:
            deadline_s = plan.spec.policy.deadline_s
        at_s = None if deadline_s is None else now_s + deadline_s
        arrival = IncomingRequest(
            id_,
            name,
            now_s,
            self._draw(),
            self._sequence,
            self._policy,
            None if self._serves_late else at_s,
            at_s,
            size_class(BYTES_PER_ITEM * input_size),
        )
        if plan.counts_tokens and plan.is_continuous:
            arrival.prompt = Prompt(blocks or (), input_size)
        request = SimulatedRequest(arrival, plan, input_size, output_size)
        if arrival.deadline_s is not None:
            self._events.at(arrival.deadline_s, self._deadline_passed, arrival)
        self._place(request)

    def _place(self, request: SimulatedRequest) -> None:
        error = self.placer.place(request)
        if error is not None:
            self.on_rejected(request, error)
        elif not request.is_pending:
            self.on_placed(request)

    def _reject_unknown(self, id_: str, row: Row) -> None:
        now_s, tenant, model, input_size, output_size, deadline_s, _ = row
        name = ModelName(tenant, model)
        arrival = IncomingRequest(id_, name, now_s, draw=0.0, sequence=0)
        request = SimulatedRequest(arrival, ModelPlan(ModelSpec(name, "")), input_size, output_size)
        self.open_total -= 1
        self._rows.add(
            request,
            finished_s=now_s,
            status=404,
            reason="model-not-found",
            error=f"model {name} does not exist",
            deadline_s=deadline_s,
        )

    # Applications

    def _arrive_at_application(self, id_: str, row: Row) -> bool:
        """False: there is no such application."""
        now_s, tenant, name, input_size, output_size, deadline_s, _ = row
        applications = self._applications
        plan = applications.by_name.get(ModelName(tenant, name)) if applications else None
        if applications is None or plan is None:
            return False
        self._sequence += 1
        self._retries.budget.earn()
        asked = applications.arrival(
            plan,
            id_,
            self._row,
            now_s,
            deadline_s,
            input_size=input_size,
            output_size=output_size,
            draw=self._draw(),
            sequence=self._sequence,
        )
        asked.on_selected = partial(self._on_selected, asked)
        self._asked[id_] = asked
        if plan.spec.refuses_late:
            self._events.at(asked.due_s, self._application_deadline_passed, asked)
        self._join_window(asked)
        return True

    def _join_window(self, asked: ApplicationArrival) -> None:
        assert self._applications is not None
        try:
            self._applications.windows.join(asked)
        except NoUsableVariant as error:
            self._finish(self._attempt(asked, None), 503, str(error), "not-ready")

    def _on_selected(self, asked: ApplicationArrival, selection: Selection) -> None:
        """As the live gateway's `ApplicationRequest`."""
        asked.selection = selection
        if asked.id not in self._asked:
            return
        request = self._attempt(asked, selection.variant)
        request.policy = asked.policy
        if selection.variant is None:
            self._finish(request, 200, None, "short-circuit")
            return
        if asked.plans == 1 and self.on_arrival is not None:
            self.on_arrival(selection.variant, self._events.now_s)
        pod = selection.assignment.worker
        if not pod:
            self._place(request)
        elif self.placer.place_planned(request, pod):
            self.on_placed(request)
        else:
            self._join_window(asked)

    def _attempt(self, asked: ApplicationArrival, variant: ModelName | None) -> SimulatedRequest:
        """A request for the variant; None: for none."""
        at_s = asked.due_s if asked.plan.spec.refuses_late else None
        name = variant or asked.plan.spec.name
        found = self._models.get((name.namespace, name.name))
        arrival = IncomingRequest(
            asked.id, name, asked.arrival_s, asked.draw, asked.sequence, None, at_s, asked.due_s
        )
        plan = found[1] if found is not None else ModelPlan(ModelSpec(name, ""))
        request = SimulatedRequest(arrival, plan, asked.input_size, asked.output_size)
        request.failed = asked.failed
        return request

    def _application_deadline_passed(self, asked: ApplicationArrival) -> None:
        """As `_deadline_passed`, also for requests that still wait for a plan."""
        id_ = asked.id
        if id_ not in self._asked:
            return
        request = self._in_flight.get(id_)
        if request is not None:
            self._release(request, is_cancelled=True)
        else:
            request = self._attempt(asked, None)
        self._finish(request, 504, "the deadline passed before the pod responded", "deadline")

    # PlacementDriver

    def reserve(
        self,
        placement: SimulatedRequest,
        decision: SendTo,
        on_reply: Callable[[SimulatedRequest, bool], None],
    ) -> bool:
        del on_reply  # operations take no time
        now_s = self._events.now_s
        granted = self._registry.reserve(
            placement.arrival.id,
            decision.entry,
            decision.predict,
            placement.spec.key,
            decision.mode,
            now_s,
            max_other_copies=decision.max_other_copies,
            target_ongoing=decision.target_ongoing,
        )
        if isinstance(granted, Refusal):
            return False
        placement.reason = decision.reason
        placement.placed_s = now_s
        placement.token = granted.load_token
        placement.entry = self._pods[decision.entry]
        placement.predict = self._pods[decision.predict]
        return True

    def on_placed(self, placement: SimulatedRequest) -> None:
        self._in_flight[placement.arrival.id] = placement
        placement.begun = self._lost_pods.losses
        if placement.entry.agent.is_alive:
            placement.entry.take(placement)
        else:
            self._events.after(0.0, self._on_entry_unreachable, placement)

    def on_rejected(self, placement: SimulatedRequest, error: Rejected) -> None:
        if error.reason is Reason.POLICY_FAILED:
            raise LoadError(str(error))  # of a plug-in: the run would compare nothing
        self._finish(placement, int(error.status), str(error), str(error.reason))

    def before_dispatch(self) -> None:
        if self.on_dispatch is not None:
            self.on_dispatch()

    def _release(self, request: SimulatedRequest, *, is_cancelled: bool = False) -> None:
        id_ = request.arrival.id
        request.end_work(is_cancelled=is_cancelled)
        self._in_flight.pop(id_, None)
        self._registry.pods.release(id_, request.entry.name, request.predict.name)
        self._notify_change()

    def _notify_change(self) -> None:
        self.placer.notify_change()
        if self._applications is not None:
            self._applications.windows.notify_change()

    # PodListener

    def on_change(self) -> None:
        self._notify_change()

    def on_response(self, request: SimulatedRequest) -> None:
        self._release(request)
        self._finish(request, 200, None)

    def on_error(self, request: SimulatedRequest, status: int, message: str) -> None:
        self._release(request)
        self._finish(request, status, message)

    def on_unreachable(self, request: SimulatedRequest) -> None:
        self._retry(request, NotExecuted.PREDICT_UNREACHABLE)

    def on_load_start(self, key: str) -> None:
        self._summary.loads_started[key] += 1

    def on_load_end(self, source: Tier, seconds: float) -> None:
        self._summary.loaded(source, seconds)

    def on_pod_end(self, idle_byte_s: float) -> None:
        self._summary.wasted_memory_byte_s += idle_byte_s

    def on_pod_death(self, pod: RequestPod) -> None:
        for request in list(self._in_flight.values()):
            if request.entry is pod:
                self._retry(request, NotExecuted.POD_DIED)
            elif request.predict is pod and request.model_needed_s >= 0.0:
                message = f"predict pod {pod.name} closed the connection"
                self.on_error(request, 503, message)

    def _on_entry_unreachable(self, request: SimulatedRequest) -> None:
        self._retry(request, NotExecuted.UNREACHABLE)

    def _retry(self, request: SimulatedRequest, reason: NotExecuted) -> None:
        """Retry a request that its entry pod did not execute; without retries left it fails."""
        if request.is_over:
            return
        self._release(request)
        failed = request.failed = request.failed or FailedAttempts()
        entry = self._state.pods.get(request.entry.name)
        predict = self._state.pods.get(request.predict.name)
        if entry is not None and predict is not None:
            self._retries.record_failure(failed, reason, entry=entry, predict=predict)
        error = self._lost_too_many(request, reason) or self._retries.take_retry(failed, reason)
        asked = self._asked.get(request.arrival.id) if self._asked else None
        if error is None and asked is not None:
            request.is_over, asked.failed = True, failed
            self._join_window(asked)
        elif error is None:
            self._place(request.retry())
        else:
            self._finish(request, 503, error)

    def _lost_too_many(self, request: SimulatedRequest, reason: NotExecuted) -> str | None:
        """The error of a request with which too many pods were lost; no two are alike."""
        if reason is not NotExecuted.POD_DIED:
            return None
        pod, path = request.entry.name, request.arrival.id.encode()
        try:
            self._lost_pods.record(path, (), 0, pod=pod, begun=request.begun)
        except RequestLostPods as error:
            return str(error)
        return None

    # Responses

    def _deadline_passed(self, arrival: IncomingRequest) -> None:
        """Respond 504 to a request at a pod; queued requests have a separate timeout."""
        request = self._in_flight.get(arrival.id)
        if request is not None:
            self._release(request, is_cancelled=True)
            message = "the deadline passed before the pod responded"
            self._finish(request, 504, message, "deadline")

    def _finish(
        self, request: SimulatedRequest, status: int, error: str | None, reason: str | None = None
    ) -> None:
        request.is_over = True
        self._summary.cached_tokens += request.cached_tokens
        self.open_total -= 1
        due_s, arrival_s = request.arrival.due_s, request.arrival.arrival_s
        self._rows.add(
            request,
            finished_s=self._events.now_s,
            status=status,
            reason=reason or request.reason,
            error=error,
            deadline_s=None if due_s is None else due_s - arrival_s,
        )
        asked = self._asked.pop(request.arrival.id, None) if self._asked else None
        if asked is not None:
            self._rows.set_answer(asked.answer(status, self._events.now_s))
