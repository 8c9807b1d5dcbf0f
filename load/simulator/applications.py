"""Requests to applications in virtual time: the gateway's windows, with examples that are known.

An example's evidence and every variant's prediction for it were computed before the run. Planning
and looking take no virtual time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.dispatch.retries import FailedAttempts
from load.generator.bodies import drawn_example
from load.simulator.cluster.plan import ApplicationExamples, ApplicationPlan
from load.simulator.event_queue import EventQueue
from load.simulator.records import Answer
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName
from variants.live import plan_or_none
from variants.look_client import Look, LookOutcome
from variants.open_windows import ApplicationRequest, OpenWindows, Selection
from variants.planning.window import (
    SHORT_CIRCUIT,
    SelectionPlan,
    Window,
    class_probabilities,
    penalty_of_one,
)


@dataclass(slots=True, eq=False, kw_only=True)
class ApplicationArrival(ApplicationRequest):
    """One request to an application, with all its plans and attempts."""

    plan: ApplicationPlan
    example: int = 0
    input_size: int
    output_size: int
    draw: float
    sequence: int
    selection: Selection | None = None
    failed: FailedAttempts | None = None

    @property
    def due_s(self) -> float:
        return self.arrival_s + self.deadline_s

    def answer(self, status: int, finished_s: float) -> Answer:
        """What the response is worth; a wrong one, and a failure, nothing."""
        selection, examples = self.selection, self.plan.examples
        variant = None if selection is None else selection.assignment.variant
        expected = None if selection is None else selection.assignment.utility
        name = self.plan.spec.name
        if examples is None:
            return Answer(name, variant, None, None, expected, None)
        label = examples.labels[self.example]
        prediction = self._prediction(examples) if status == 200 else None
        late = penalty_of_one(self.plan.spec.penalty, self.deadline_s, finished_s - self.arrival_s)
        utility = (1.0 - late) if prediction == label else 0.0
        return Answer(name, variant, label, prediction, expected, utility)

    def _prediction(self, examples: ApplicationExamples) -> int | None:
        if self.selection is None:
            return None
        variant = self.selection.assignment.variant
        if variant == SHORT_CIRCUIT:
            return int(class_probabilities(examples.evidence[self.example]).argmax())
        predicted = examples.predicted.get(variant)
        return None if predicted is None else predicted[self.example]


class SimulatedApplications:
    """The open windows of the simulated gateway, and the requests that join them."""

    def __init__(
        self,
        events: EventQueue,
        state: ClusterState,
        plans: Sequence[ApplicationPlan],
        seed: int,
        load: Callable[[ModelName, str], object],
    ) -> None:
        """`load` a variant at a pod in the background."""
        self.by_name = {plan.spec.name: plan for plan in plans}
        self.planned: list[tuple[Window, SelectionPlan | None]] | None = None
        """Windows with their plans, if they are to be kept."""
        self._seed = seed
        self.windows = OpenWindows(state, self._plan, load, events, events.now)

    def arrival(
        self,
        plan: ApplicationPlan,
        id_: str,
        row: int,
        now_s: float,
        deadline_s: float | None,
        *,
        input_size: int,
        output_size: int,
        draw: float,
        sequence: int,
    ) -> ApplicationArrival:
        """A request with the example that a live run would send in this row of the trace."""
        spec, examples = plan.spec, plan.examples
        found = ApplicationArrival(
            id_,
            spec,
            now_s,
            deadline_s or spec.deadline_s,
            spec.policy,
            plan=plan,
            input_size=input_size,
            output_size=output_size,
            draw=draw,
            sequence=sequence,
        )
        if examples is not None:
            found.example = drawn_example(self._seed, row, len(examples.labels))
            if examples.evidence:
                rows = (examples.evidence[found.example],)
                found.look = Look(LookOutcome.SEEN, plan.look_accuracy, rows, is_answerable=True)
        return found

    def _plan(
        self, policy: str, window: Window, then: Callable[[SelectionPlan | None], object]
    ) -> None:
        plan = plan_or_none(policy, window)
        if self.planned is not None:
            self.planned.append((window, plan))
        then(plan)
