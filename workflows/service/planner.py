"""Places the steps of runs on the live cluster: by the scheduling policies, on the local state."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from registry.domain.model import ModelName
from workflows.scheduling.backlog import device_queue
from workflows.scheduling.candidates import candidate_devices
from workflows.scheduling.costs import scheduling_problem
from workflows.scheduling.greedy import greedy
from workflows.scheduling.problem import (
    Loading,
    Placement,
    SchedulingProblemError,
    Step,
)
from workflows.scheduling.replanning import is_outdated
from workflows.scheduling.round_robin import round_robin
from workflows.scheduling.speculative import FEW_STATES, speculative
from workflows.service import cluster_view
from workflows.service.assigned_steps import AssignedSteps
from workflows.service.knowledge import WorkflowKnowledge
from workflows.service.plan import Plan, PlannedStep
from workflows.service.plan_document import plan_document
from workflows.service.policy import SchedulingPolicy
from workflows.service.run import StepState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelSpec
    from registry.domain.pod_state import PodState
    from registry.redis.watch import ClusterWatch
    from workflows.scheduling.backlog import DeviceQueue
    from workflows.scheduling.costs import ModelCosts
    from workflows.scheduling.problem import SchedulingProblem
    from workflows.service.metrics import SchedulerMetrics
    from workflows.service.preloads import Preloads
    from workflows.service.run import Run, RunStep

logger = logging.getLogger(__name__)

_MAX_PLANS: Final = 16
"""Of a run, kept for explanations."""


class Planner:
    """Assigns steps to pods. Owned by the event loop; decides without an await."""

    def __init__(self, watch: ClusterWatch, preloads: Preloads, metrics: SchedulerMetrics) -> None:
        self._watch = watch
        self._preloads = preloads
        self._metrics = metrics
        self._steps = AssignedSteps()
        self._plans: dict[str, Plan] = {}
        self._output_bytes: dict[str, float] = {}
        self._turn = 0
        self.knowledge: dict[ModelName, WorkflowKnowledge] = defaultdict(WorkflowKnowledge)

    @property
    def _state(self) -> ClusterState:
        return self._watch.state

    def now_s(self) -> float:
        return self._watch.registry_now_s()

    def spec(self, model: ModelName) -> ModelSpec | None:
        record = self._state.models.get(model)
        return None if record is None else record.serving

    # The course of a run

    def begin(self, run: Run) -> None:
        """Plan the steps that a new run is expected to take."""
        if run.scheduling is SchedulingPolicy.SPECULATIVE:
            self._plan(run)

    def call(self, run: Run, step: RunStep) -> None:
        """A step was called: it is the predicted one, or the rest of the run is planned anew."""
        knowledge, now_s = self.knowledge[run.workflow], self.now_s()
        before = run.models[: step.number]
        plan = self._plans.get(run.identity)
        self._steps.forget(run.identity, step.number, plan)
        step.predicted = plan is not None and plan.foresees(
            step.number, step.model.name, step.sources
        )
        knowledge.observe_call(before, step.model.name, step.sources, run.features, now_s)
        if run.scheduling is not SchedulingPolicy.SPECULATIVE:
            return
        age_s = now_s - plan.made_s if plan is not None else 0.0
        if plan is not None and not is_outdated(step.predicted, age_s):
            self._assign(run, step, plan.steps[step.number].pod)
        else:
            self._plan(run)

    def place(self, run: Run, step: RunStep) -> str:
        """The pod for a step whose inputs are there; empty: the gateway chooses."""
        if run.scheduling is SchedulingPolicy.AUTO:
            return ""
        if run.scheduling is SchedulingPolicy.SPECULATIVE:
            if not self._is_accepting(step.pod):
                step.pod = ""
                self._plan(run, unplaced=step)
            pod = step.pod
        else:
            pod = self._place_alone(run, step)
        if pod:
            now_s = self.now_s()
            self._steps.assign(
                run.identity, step.number, pod, self._key(step.model), ready_s=now_s, sent_s=now_s
            )
        return pod

    def ended(self, run: Run, step: RunStep) -> None:
        """A step is over, or was taken back."""
        self._steps.remove(run.identity, step.number)
        if step.outputs is not None and step.state is StepState.DONE:
            size = float(sum(len(each.raw) for each in step.outputs.values()))
            key = self._key(step.model)
            self._output_bytes[key] = 0.8 * self._output_bytes.get(key, size) + 0.2 * size
            self._preloads.used(step.pod, key)

    def end(self, run: Run, *, is_learned: bool) -> None:
        """A run is over."""
        if is_learned:
            self.knowledge[run.workflow].observe_end(run.models, run.features, self.now_s())
        self._steps.forget_all(run.identity, self._plans.pop(run.identity, None))
        for step in run.steps:
            self.ended(run, step)
        self._preloads.withdraw(run.identity, set())

    # Planning

    def _plan(self, run: Run, unplaced: RunStep | None = None) -> None:
        """Place all known and predicted steps of a run together, and load ahead for them.

        `unplaced`: a step that is to be sent and has no pod, or none any more.
        """
        now_s, started_s = self.now_s(), time.perf_counter()
        predicted = self.knowledge[run.workflow].predict(run.models, run.features, now_s)
        namespace = run.workflow.namespace
        steps: list[tuple[ModelName, tuple[int, ...], float]] = [
            (step.model, tuple(step.sources), 1.0) for step in run.steps
        ]
        for each in predicted:
            steps.append((ModelName(namespace, each.model), each.inputs, each.probability))
            if self.spec(steps[-1][0]) is None:
                steps.pop()
                break
        if not steps:
            return
        pods = cluster_view.accepting_pods(self._state)
        if not pods:
            return
        try:
            problem, chosen = self._problem(run, steps, pods, now_s, unplaced)
            schedule = speculative(problem, FEW_STATES)
        except SchedulingProblemError as error:
            logger.info("no plan for a run", extra={"run": run.identity, "error": str(error)})
            return
        plan = Plan(
            tuple(
                PlannedStep(
                    model.name, inputs, chosen[at.device].name, now_s + at.start_s,
                    now_s + at.end_s, probability,
                )
                for (model, inputs, probability), at in zip(
                    steps, schedule.placements, strict=True
                )
            ),
            now_s,
        )  # fmt: skip
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

    def _problem(
        self,
        run: Run,
        steps: Sequence[tuple[ModelName, tuple[int, ...], float]],
        pods: Sequence[PodState],
        now_s: float,
        unplaced: RunStep | None,
    ) -> tuple[SchedulingProblem, Sequence[PodState]]:
        """The problem of these steps on all candidate pods, and those pods."""
        keys = [self._key(model) for model, _, _ in steps]
        costs = {key: self._costs(model) for key, (model, _, _) in zip(keys, steps, strict=True)}
        queues = [self._queue(pod, run, now_s) for pod in pods]
        positions = {pod.name: position for position, pod in enumerate(pods)}
        wanted = [Step(key, inputs) for key, (_, inputs, _) in zip(keys, steps, strict=True)]
        placed_at = {
            step.number: positions.get(step.pod, 0)
            for step in run.steps
            if step.state is not StepState.WAITING and step is not unplaced
        }
        candidates = candidate_devices(
            wanted,
            free_s=[queue.free_s for queue in queues],
            holders=cluster_view.holders_by_model(self._state, positions, list(costs)),
            outputs_at=set(placed_at.values()),
        )
        used = sorted({device for each in candidates for device in each})
        position_of = {device: position for position, device in enumerate(used)}
        chosen = [pods[device] for device in used]
        devices = [
            cluster_view.device_of(self._state, pods[at], queues[at], list(costs), now_s)
            for at in used
        ]
        placed = {}
        for number, device in placed_at.items():
            step = run.steps[number]
            end_s = 0.0
            if not step.is_over:
                end_s = max(step.sent_s + costs[keys[number]].batch_s(1) - now_s, 0.0)
            placed[number] = Placement(position_of[device], 0.0, end_s)
        problem = scheduling_problem(
            wanted, devices, costs, cluster_view.LINKS,
            allowed=[[position_of[device] for device in each] for each in candidates],
            placed=placed, loading=Loading.BESIDE_QUEUE,
        )  # fmt: skip
        return problem, chosen

    def _place_alone(self, run: Run, step: RunStep) -> str:
        """One step whose inputs are there, by `greedy` or `round_robin`; empty without pods."""
        pods, now_s = cluster_view.accepting_pods(self._state), self.now_s()
        if not pods:
            return ""
        key = self._key(step.model)
        sources = [run.steps[number] for number in step.sources]
        positions = {pod.name: position for position, pod in enumerate(pods)}
        steps = [Step(self._key(source.model)) for source in sources]
        steps.append(Step(key, tuple(range(len(sources)))))
        costs = {self._key(each.model): self._costs(each.model) for each in (*sources, step)}
        devices = [
            cluster_view.device_of(
                self._state, pod, self._queue(pod, run, now_s), list(costs), now_s
            )
            for pod in pods
        ]
        placed = {
            number: Placement(positions.get(source.pod, 0), 0.0, 0.0)
            for number, source in enumerate(sources)
        }
        problem = scheduling_problem(
            steps, devices, costs, cluster_view.LINKS, placed=placed,
            loading=Loading.BESIDE_QUEUE,
        )  # fmt: skip
        try:
            if run.scheduling is SchedulingPolicy.ROUND_ROBIN:
                schedule = round_robin(problem, self._turn % len(pods))
                self._turn = schedule.placements[-1].device + 1
            else:
                schedule = greedy(problem)
        except SchedulingProblemError:
            return ""
        return pods[schedule.placements[-1].device].name

    def _load_ahead(self, run: Run, plan: Plan) -> None:
        """Begin the loads of planned steps, and withdraw those that this run planned before."""
        now_s, wanted = self.now_s(), set()
        namespace = run.workflow.namespace
        for number, step in enumerate(plan.steps):
            if number < len(run.steps) and run.steps[number].is_over:
                continue
            spec = self.spec(ModelName(namespace, step.model))
            pod = self._state.pods.get(step.pod)
            if spec is None or pod is None or (step.pod, spec.key) in wanted:
                continue
            load_s = cluster_view.load_seconds(self._state, pod, spec.key, now_s)
            is_known = number < len(run.steps)
            if load_s <= 0.0:
                continue
            if is_known or self._is_worth_loading(pod, spec.key, load_s, step.probability):
                wanted.add((step.pod, spec.key))
                preload = self._preloads.want(
                    run.identity, pod, spec, due_s=step.start_s, is_predicted=not is_known
                )
                if preload not in run.preloads:
                    run.preloads.append(preload)
        self._preloads.withdraw(run.identity, wanted)

    def _is_worth_loading(self, pod: PodState, key: str, load_s: float, probability: float) -> bool:
        """Whether a load is expected to save more time than it costs requests of other models."""
        prices = self._state.prices_at(self.now_s())
        costs_s = prices.load_cost_s(pod, prices.size_bytes(key), load_s)
        return probability * load_s > costs_s

    # What is known of pods and models

    def _expect(self, run: Run, plan: Plan) -> None:
        """Count the plan's predicted steps at their pods, in place of those of an older plan."""
        self._steps.forget_all(run.identity, self._plans.get(run.identity))
        self._plans[run.identity] = plan
        for number, step in enumerate(plan.steps[len(run.steps) :], start=len(run.steps)):
            key = self._key(ModelName(run.workflow.namespace, step.model))
            self._steps.expect(run.identity, number, step.pod, key, start_s=step.start_s)

    def _assign(self, run: Run, step: RunStep, pod: str) -> None:
        """Note that a step is to run at a pod, which later plans count."""
        step.pod = pod
        self._steps.assign(
            run.identity, step.number, pod, self._key(step.model), ready_s=self.now_s()
        )

    def _queue(self, pod: PodState, run: Run, now_s: float) -> DeviceQueue:
        """The device's queue without the steps of this run that are placed anew."""
        steps = self._steps.at(pod.name, run.identity, now_s)
        sent = sum(each.sent_s is not None for each in steps)
        mean_s = pod.work.mean.share_s if pod.work.mean is not None else 0.05
        foreign_s = cluster_view.foreign_seconds(self._state, pod, sent, mean_s)
        return device_queue(steps, self._costs_by_key, foreign_s=foreign_s)

    def _costs(self, model: ModelName) -> ModelCosts:
        return self._costs_of_key(self._key(model), model)

    def _costs_by_key(self, key: str) -> ModelCosts:
        return self._costs_of_key(key, ModelName.parse(key.rpartition("@")[0]))

    def _costs_of_key(self, key: str, model: ModelName) -> ModelCosts:
        spec = self.spec(model)
        if spec is None:
            raise SchedulingProblemError(f"model {model} is not declared")
        return cluster_view.model_costs(self._state, spec, self._output_bytes.get(key, 4096.0))

    def _key(self, model: ModelName) -> str:
        spec = self.spec(model)
        return str(model) if spec is None else spec.key

    def _is_accepting(self, name: str) -> bool:
        pod = self._state.pods.get(name)
        return pod is not None and pod.is_accepting
