"""Places the steps of runs on the live cluster; plans are explained, and announced."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Final

from registry.domain.demand import ArrivalHint
from registry.domain.model import ModelName, ModelSpec
from registry.domain.pod_state import PodState
from registry.redis.watch import ClusterWatch
from workflows.metrics import SchedulerMetrics
from workflows.plan.costs import scheduling_problem
from workflows.plan.pods import PodQueues, holders_by_model, is_worth_loading, links, load_seconds
from workflows.plan.problem import (
    Placement,
    Schedule,
    SchedulingPolicy,
    SchedulingProblem,
    SchedulingProblemError,
    Step,
    candidate_devices,
)
from workflows.plan.speculative import (
    FEW_STATES,
    MergedSteps,
    is_outdated,
    place_sharing_batches,
    speculative,
)
from workflows.predict import END, ObservedCall, WorkflowKnowledge
from workflows.preloads import Preloads
from workflows.run import Run, RunStep, StepState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """Where and when a step is to run. Times on the registry's clock."""

    model: str
    """Name within the run's namespace."""
    inputs: tuple[int, ...]
    pod: str
    start_s: float
    end_s: float
    probability: float
    """1 for a known step."""


@dataclass(frozen=True, slots=True)
class Plan:
    steps: tuple[PlannedStep, ...]
    """By position in the run."""
    made_s: float = 0.0
    """On the registry's clock."""
    namespace: str = "default"
    """Of its models."""

    def following_s(self, position: int) -> float:
        """How long the run is expected to go on after the end of a step; 0 for one not planned."""
        if position >= len(self.steps):
            return 0.0
        return max(each.end_s for each in self.steps) - self.steps[position].end_s

    def foresees(self, position: int, model: str, inputs: Sequence[int]) -> bool:
        """Whether the call at `position` is the one that was predicted."""
        if position >= len(self.steps):
            return False
        step = self.steps[position]
        return step.model == model and step.inputs == tuple(inputs)


MAX_CANDIDATES: Final = 6
"""Devices shown of each step: those where it would end earliest by itself."""


def plan_document(
    plan: Plan, problem: SchedulingProblem, *, begun_s: float, known: int, exact: bool
) -> Mapping[str, object]:
    """With times in seconds since the run began at `begun_s`; `known`: steps called so far."""
    return {
        "at_s": round(plan.made_s - begun_s, 6),
        "known": known,
        "exact": exact,
        "steps": [
            {
                "model": step.model,
                "inputs": step.inputs,
                "pod": step.pod,
                "start_s": round(step.start_s - begun_s, 6),
                "end_s": round(step.end_s - begun_s, 6),
                "probability": round(step.probability, 4),
                "candidates": _candidates(problem, number) if number >= known else [],
            }
            for number, step in enumerate(plan.steps)
        ],
    }


def _candidates(problem: SchedulingProblem, number: int) -> Sequence[Mapping[str, object]]:
    """Waiting, loading and computing on each device, in seconds from the plan."""
    costs = zip(
        problem.devices,
        problem.free_s[number],
        problem.load_s[number],
        problem.compute_s[number],
        strict=True,
    )
    found = [
        (max(free_s, load_s) + compute_s, name, free_s, load_s, compute_s)
        for name, free_s, load_s, compute_s in costs
        if max(free_s, load_s) + compute_s < inf
    ]
    return [
        {
            "pod": name,
            "free_s": round(free_s, 6),
            "load_s": round(load_s, 6),
            "compute_s": round(compute_s, 6),
        }
        for _, name, free_s, load_s, compute_s in sorted(found)[:MAX_CANDIDATES]
    ]


def announced_arrivals(planned: Iterable[tuple[ModelName, PlannedStep]]) -> list[ArrivalHint]:
    """What autoscalers are told of steps that are planned and not sent: by model, sorted.

    Probabilities that at least one comes are as if steps were independent.
    """
    by_model: dict[ModelName, list[PlannedStep]] = {}
    for model, step in planned:
        if step.probability > 0:
            by_model.setdefault(model, []).append(step)
    found = []
    for model, steps in sorted(by_model.items(), key=lambda item: str(item[0])):
        none = prod(1.0 - step.probability for step in steps)
        some = max(1.0 - none, *(step.probability for step in steps))
        expected = sum(step.probability for step in steps)
        until_s = max(step.start_s for step in steps)
        found.append(ArrivalHint(model, some, until_s, max(1.0, expected / some)))
    return found


_MAX_PLANS: Final = 16
"""Of a run, kept for explanations."""


class Planner:
    """Assigns steps to pods. Owned by the event loop; decides without an await."""

    def __init__(self, watch: ClusterWatch, preloads: Preloads, metrics: SchedulerMetrics) -> None:
        self._pods = PodQueues(watch)
        self._preloads = preloads
        self._metrics = metrics
        self._plans: dict[str, Plan] = {}
        self.knowledge: dict[ModelName, WorkflowKnowledge] = defaultdict(WorkflowKnowledge)

    def now_s(self) -> float:
        return self._pods.now_s()

    def spec(self, model: ModelName) -> ModelSpec | None:
        return self._pods.spec(model)

    # The course of a run

    def begin(self, run: Run) -> None:
        """Plan the steps that a new run is expected to take."""
        if run.scheduling == SchedulingPolicy.SPECULATIVE:
            self._plan(run)

    def call(self, run: Run, step: RunStep) -> None:
        """A step was called: it is the predicted one, or the rest of the run is planned anew."""
        knowledge, now_s = self.knowledge[run.workflow], self.now_s()
        before = run.models[: step.number]
        plan = self._plans.get(run.identity)
        self._pods.steps.remove(run.identity, step.number)
        step.predicted = plan is not None and plan.foresees(
            step.number, step.model.name, step.sources
        )
        knowledge.observe(ObservedCall(before, step.model.name, run.features, now_s, step.sources))
        if run.scheduling != SchedulingPolicy.SPECULATIVE:
            return
        age_s = now_s - plan.made_s if plan is not None else 0.0
        if plan is not None and not is_outdated(step.predicted, age_s):
            self._assign(run, step, plan.steps[step.number].pod)
        else:
            self._plan(run)

    def place(self, run: Run, step: RunStep) -> str:
        """The pod for a step whose inputs are there; empty: the gateway chooses."""
        self._pods.note_arrival(step)
        match run.scheduling:
            case SchedulingPolicy.AUTO:
                return ""
            case SchedulingPolicy.SPECULATIVE:
                if not self._pods.is_accepting(step.pod):
                    step.pod = ""
                    self._plan(run, unplaced=step)
                pod = step.pod
            case _:
                pod = self._pods.place_alone(run, step)
        if pod:
            now_s = self.now_s()
            self._pods.steps.assign(
                run.identity,
                step.number,
                pod,
                self._pods.key(step.model),
                ready_s=now_s,
                sent_s=now_s,
            )
        return pod

    def following_s(self, run: Run, step: RunStep) -> float:
        """How long the run is expected to go on after this step; 0 without a plan."""
        plan = self._plans.get(run.identity)
        return plan.following_s(step.number) if plan is not None else 0.0

    def ended(self, run: Run, step: RunStep) -> None:
        """A step is over, or was taken back."""
        self._pods.steps.remove(run.identity, step.number)
        if step.state is StepState.DONE:
            self._pods.note_outputs(step)
            self._preloads.used(step.pod, self._pods.key(step.model))

    def possible_keepers(self, run: Run) -> set[str]:
        """Addresses of pods that may keep outputs of attempts whose response has not come.

        Where nobody here knows the pod, it is one of those that hold or load the step's model.
        """
        pods, names = self._pods.state.pods, set[str]()
        for step in run.steps:
            is_under_way = step.state is StepState.RUNNING
            if run.resumptions > 0 or step.attempts > 1 or (is_under_way and not step.pod):
                key = self._pods.key(step.model)
                held = self._pods.state.holders(key).items()
                names |= {name for name, each in held if each.is_warm or each.is_warming}
            elif is_under_way:
                names.add(step.pod)
        return {pods[name].address for name in names if name in pods}

    def end(self, run: Run, *, is_learned: bool) -> None:
        if is_learned:
            call = ObservedCall(run.models, END, run.features, self.now_s())
            self.knowledge[run.workflow].observe(call)
        plan = self._plans.pop(run.identity, None)
        for number in range(len(plan.steps) if plan is not None else 0):
            self._pods.steps.remove(run.identity, number)
        for step in run.steps:
            self.ended(run, step)
        self._preloads.withdraw(run.identity, set())

    def hints(self) -> list[ArrivalHint]:
        """The steps that plans expect and that were not sent, by model."""
        return announced_arrivals(
            (ModelName(plan.namespace, step.model), step)
            for run, plan in self._plans.items()
            for number, step in enumerate(plan.steps)
            if self._pods.steps.is_unsent(run, number)
        )

    # Planning

    def _plan(self, run: Run, unplaced: RunStep | None = None) -> None:
        """Place all known and predicted steps of a run together, and load ahead for them.

        `unplaced`: a step that is to be sent and has no pod, or none any more.
        """
        now_s, started_s = self.now_s(), time.perf_counter()
        steps = self._expected_steps(run, now_s)
        pods = self._pods.accepting()
        if not steps or not pods:
            return
        try:
            schedule, problem, chosen = self._schedule(run, steps, pods, now_s, unplaced)
        except SchedulingProblemError as error:
            logger.info("no plan for a run", extra={"run": run.identity, "error": str(error)})
            return
        plan = Plan(
            tuple(
                PlannedStep(
                    model.name,
                    inputs,
                    chosen[at.device].name,
                    now_s + at.start_s,
                    now_s + at.end_s,
                    probability,
                )
                for (model, inputs, probability), at in zip(steps, schedule.placements, strict=True)
            ),
            now_s,
            run.workflow.namespace,
        )
        self._metrics.planning.observe(time.perf_counter() - started_s)
        self._expect(run, plan)
        if len(run.plans) < _MAX_PLANS:
            run.plans.append(
                plan_document(
                    plan, problem, begun_s=run.begun_s, known=len(run.steps), exact=schedule.exact
                )
            )
        for step in run.steps:
            if step.state is StepState.WAITING or step is unplaced:
                self._assign(run, step, plan.steps[step.number].pod)
        self._load_ahead(run, plan)

    def _expected_steps(
        self, run: Run, now_s: float
    ) -> list[tuple[ModelName, tuple[int, ...], float]]:
        """Model, inputs and probability of known and predicted steps."""
        steps = [(step.model, tuple(step.sources), 1.0) for step in run.steps]
        for each in self.knowledge[run.workflow].predict(run.models, run.features, now_s):
            model = ModelName(run.workflow.namespace, each.model)
            if self.spec(model) is None:
                break
            steps.append((model, each.inputs, each.probability))
        return steps

    def _schedule(
        self,
        run: Run,
        steps: Sequence[tuple[ModelName, tuple[int, ...], float]],
        pods: Sequence[PodState],
        now_s: float,
        unplaced: RunStep | None,
    ) -> tuple[Schedule, SchedulingProblem, Sequence[PodState]]:
        """A schedule, the problem with each step alone, and the pods that its devices mean."""
        costs = self._pods.costs_of([model for model, _, _ in steps])
        wanted = [Step(self._pods.key(model), inputs) for model, inputs, _ in steps]
        queues = [self._pods.queue(pod, run, now_s) for pod in pods]
        positions = {pod.name: position for position, pod in enumerate(pods)}
        sent = {
            step.number: positions.get(step.pod, 0)
            for step in run.steps
            if step.state is not StepState.WAITING and step is not unplaced
        }
        candidates = candidate_devices(
            wanted,
            free_s=[queue.free_s for queue in queues],
            holders=holders_by_model(self._pods.state, positions, list(costs)),
            outputs_at=set(sent.values()),
        )
        used = sorted({device for each in candidates for device in each})
        position_of = {device: position for position, device in enumerate(used)}
        devices = [self._pods.device(pods[at], queues[at], list(costs), now_s) for at in used]
        placed = {}
        for number, device in sent.items():
            step = run.steps[number]
            end_s = step.sent_s + costs[wanted[number].model].batch_s(1) - now_s
            left_s = 0.0 if step.is_over else max(end_s, 0.0)
            placed[number] = Placement(position_of[device], 0.0, left_s)
        transfers = links(self._pods.state)
        problem: SchedulingProblem | None = None

        def place(way: MergedSteps, fixed: Mapping[int, Placement]) -> Schedule:
            nonlocal problem
            problem = scheduling_problem(
                way.steps,
                devices,
                costs,
                transfers,
                allowed=[[position_of[each] for each in candidates[at]] for at in way.calls_of()],
                placed=fixed,
            )
            return speculative(problem, FEW_STATES)

        schedule = place_sharing_batches(wanted, placed, lambda key: costs[key].max_batch, place)
        if problem is None:
            raise SchedulingProblemError("no step is to be placed")
        return schedule, problem, [pods[device] for device in used]

    def _load_ahead(self, run: Run, plan: Plan) -> None:
        """Begin the loads of planned steps, and withdraw those that this run planned before."""
        now_s, wanted = self.now_s(), set()
        state = self._pods.state
        for number, step in enumerate(plan.steps):
            if number < len(run.steps) and run.steps[number].is_over:
                continue
            spec = self.spec(ModelName(run.workflow.namespace, step.model))
            pod = state.pods.get(step.pod)
            if spec is None or pod is None or (step.pod, spec.key) in wanted:
                continue
            load_s = load_seconds(state, pod, spec.key, now_s)
            is_known = number < len(run.steps)
            if load_s <= 0.0:
                continue
            if is_known or is_worth_loading(state, pod, spec.key, now_s, load_s, step.probability):
                wanted.add((step.pod, spec.key))
                preload = self._preloads.want(
                    run.identity, pod, spec, due_s=step.start_s, is_predicted=not is_known
                )
                if preload not in run.preloads:
                    run.preloads.append(preload)
        self._preloads.withdraw(run.identity, wanted)

    def _expect(self, run: Run, plan: Plan) -> None:
        """Count the plan's predicted steps at their pods, in place of those of an older plan."""
        steps, older = self._pods.steps, self._plans.get(run.identity)
        for number in range(len(plan.steps), len(older.steps) if older is not None else 0):
            steps.remove(run.identity, number)
        self._plans[run.identity] = plan
        for number, step in enumerate(plan.steps[len(run.steps) :], start=len(run.steps)):
            key = self._pods.key(ModelName(run.workflow.namespace, step.model))
            steps.assign(run.identity, number, step.pod, key, ready_s=step.start_s)

    def _assign(self, run: Run, step: RunStep, pod: str) -> None:
        """Note that a step is to run at a pod, which later plans count."""
        step.pod = pod
        self._pods.steps.assign(
            run.identity, step.number, pod, self._pods.key(step.model), ready_s=self.now_s()
        )
