"""Places steps one by one when their inputs are there: `greedy` and plug-ins."""

import logging
from collections.abc import Collection, Sequence

from registry.domain.pod_state import PodState
from workflows.scheduling.costs import Device, scheduling_problem
from workflows.scheduling.policies import step_policy
from workflows.scheduling.problem import Placement, SchedulingProblemError, Step
from workflows.service import cluster_view
from workflows.service.pod_queues import PodQueues
from workflows.service.run import Run, RunStep

logger = logging.getLogger(__name__)


class LonePlacement:
    def __init__(self, pods: PodQueues) -> None:
        self._pods = pods
        self._turns: dict[str, int] = {}
        """By policy: the position after that of the pod chosen last."""

    def place(
        self, run: Run, step: RunStep, *, policy: str = "", among: Collection[str] = ()
    ) -> str:
        """The pod of a step whose inputs are there; empty where no pod can run it.

        `policy`: in place of the run's; `among`: the pods to choose from, if one of them accepts.
        """
        policy = policy or run.scheduling
        pods, now_s = self._pods.accepting(), self._pods.now_s()
        if not pods:
            return ""
        key = self._pods.key(step.model)
        sources = [run.steps[number] for number in step.sources]
        steps = [Step(self._pods.key(source.model)) for source in sources]
        steps.append(Step(key, tuple(range(len(sources)))))
        positions = {pod.name: position for position, pod in enumerate(pods)}
        allowed: Sequence[int] = range(len(pods))
        if among:
            allowed = [at for at, pod in enumerate(pods) if pod.name in among] or allowed
        try:
            problem = scheduling_problem(
                steps,
                [self._device(pod, run, key, now_s) for pod in pods],
                self._pods.costs_of([*(source.model for source in sources), step.model]),
                cluster_view.links(self._pods.state),
                placed={
                    number: Placement(positions.get(source.pod, 0), 0.0, 0.0)
                    for number, source in enumerate(sources)
                },
                allowed=[*([range(len(pods))] * len(sources)), allowed],
            )
            turn = self._turns.get(policy, 0) % len(pods)
            chosen = step_policy(policy)(problem, turn).placements[-1].device
        except SchedulingProblemError as error:  # such as a model that was deleted
            logger.info("no place for a step", extra={"run": run.identity, "error": str(error)})
            return ""
        self._turns[policy] = chosen + 1
        return pods[chosen].name

    def _device(self, pod: PodState, run: Run, key: str, now_s: float) -> Device:
        return self._pods.device(pod, self._pods.queue(pod, run, now_s), [key], now_s)
