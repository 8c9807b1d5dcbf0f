"""The steps that this scheduler has put on each pod, and those that its plans predict there."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from workflows.scheduling.backlog import AssignedStep

if TYPE_CHECKING:
    from workflows.service.plan import Plan


class AssignedSteps:
    """Owned by the event loop. Steps are named by run and number."""

    def __init__(self) -> None:
        self._assigned: dict[str, dict[tuple[str, int], AssignedStep]] = defaultdict(dict)
        """By pod: steps that are to run there and are not over."""
        self._expected: dict[str, dict[tuple[str, int], AssignedStep]] = defaultdict(dict)
        """By pod: steps that are predicted to run there."""

    def assign(
        self, run: str, number: int, pod: str, key: str, *, ready_s: float,
        sent_s: float | None = None,
    ) -> None:  # fmt: skip
        """A step is to run at a pod, and nowhere else."""
        self.remove(run, number)
        self._assigned[pod][run, number] = AssignedStep(key, ready_s, sent_s)

    def remove(self, run: str, number: int) -> None:
        for steps in self._assigned.values():
            steps.pop((run, number), None)

    def is_unsent(self, run: str, number: int, pod: str) -> bool:
        """Whether a step is predicted or to run at a pod, and was not sent there."""
        if (run, number) in self._expected[pod]:
            return True
        assigned = self._assigned[pod].get((run, number))
        return assigned is not None and assigned.sent_s is None

    def count(self, pod: str, key: str) -> int:
        """Steps of a model that are to run at a pod."""
        return sum(each.model == key for each in self._assigned[pod].values())

    def expect(self, run: str, number: int, pod: str, key: str, *, start_s: float) -> None:
        self._expected[pod][run, number] = AssignedStep(key, start_s)

    def forget(self, run: str, number: int, plan: Plan | None) -> None:
        """A step is not predicted any more."""
        if plan is not None and number < len(plan.steps):
            self._expected[plan.steps[number].pod].pop((run, number), None)

    def forget_all(self, run: str, plan: Plan | None) -> None:
        """No step of a plan is predicted any more."""
        for number in range(len(plan.steps) if plan is not None else 0):
            self.forget(run, number, plan)

    def at(self, pod: str, run: str, now_s: float) -> list[AssignedStep]:
        """What a plan of `run` counts at a pod: without its steps that are placed anew.

        Times in seconds from now.
        """
        steps = [
            AssignedStep(
                each.model,
                max(0.0, each.ready_s - now_s),
                None if each.sent_s is None else min(0.0, each.sent_s - now_s),
            )
            for (identity, _), each in self._assigned[pod].items()
            if identity != run or each.sent_s is not None
        ]
        return steps + [
            AssignedStep(each.model, max(0.0, each.ready_s - now_s))
            for (identity, _), each in self._expected[pod].items()
            if identity != run
        ]
