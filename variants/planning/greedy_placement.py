"""Orders requests and groups of them, and places them one after another; Wolfrath et al. 2025, 5.

A group has one variant, on one worker, and begins when that worker is free; each goes where its
mean utility is highest (eq. 13). Pure.
"""

from collections.abc import Sequence

import numpy as np

from variants.planning.planning_problem import Floats, Ints, PlanningProblem, penalty_by_kind


def by_deadline(problem: PlanningProblem) -> list[Ints]:
    """Each request alone, by its time due; requests are sorted by arrival and id already."""
    due = problem.deadline_s[:, 0] - problem.age_s
    return [np.array([at]) for at in np.argsort(due, kind="stable")]


def by_priority(problem: PlanningProblem) -> list[Ints]:
    """Each request alone, by falling priority."""
    return [np.array([at]) for at in np.argsort(-problem.priority, kind="stable")]


def by_application(problem: PlanningProblem, *, is_split: bool) -> list[Ints]:
    """Groups by falling priority, as are their requests; `is_split`: also by likely class."""
    members: dict[tuple[int, int], list[int]] = {}
    for at in np.argsort(-problem.priority, kind="stable").tolist():
        likely = int(problem.likely[at]) if is_split else -1
        members.setdefault((int(problem.application[at]), likely), []).append(at)
    return _sorted(problem, [np.array(group) for _, group in sorted(members.items())])


def _sorted(problem: PlanningProblem, groups: Sequence[Ints]) -> list[Ints]:
    """By falling mean priority (eq. 14); ties keep the order."""
    return sorted(groups, key=lambda group: -np.add.reduce(problem.priority[group]) / len(group))


def share_among_workers(problem: PlanningProblem, groups: Sequence[Ints]) -> list[Ints]:
    """Groups in equal parts, one for each worker (section 8), by falling priority again."""
    workers = len(problem.workers) - 1
    shared: list[Ints] = []
    for group in groups:
        most = -(-len(group) // max(workers, 1))
        shared += np.array_split(group, -(-len(group) // most))
    return _sorted(problem, shared) if len(shared) > len(groups) else list(groups)


class GroupChoices:
    """What each group gets by each of its choices: its requests run one after another.

    Arrays are [groups, choices].
    """

    def __init__(self, problem: PlanningProblem, groups: Sequence[Ints]) -> None:
        self._penalties = problem.penalties
        firsts = np.array([group[0] for group in groups])
        self.variant, self.worker = problem.variant[firsts], problem.worker[firsts]
        self.takes_time = self.variant != problem.short_circuit
        self.swap_s = problem.swap_s[firsts]
        counts = np.array([[len(group)] for group in groups])
        self.total_s = problem.latency_s[firsts] * counts
        places = np.arange(counts.max())
        # Requests that smaller groups lack are their first one again, and worthless.
        members = np.array(
            [[*group, *group[:1].repeat(len(places) - len(group))] for group in groups]
        )
        accuracy = np.where((places < counts)[:, :, None], problem.accuracy[members], 0.0)
        self._accuracy = _by_choice(accuracy)
        self._deadline_s = problem.deadline_s[members, 0][:, None]
        turns_s = problem.latency_s[firsts][:, :, None] * (places + 1)
        self._ends_s = turns_s + _by_choice(problem.beside_s[members])
        """[groups, choices, requests]: what is added to the group's start for completions."""
        self._penalty_kind = problem.penalty_kind[firsts][:, :1, None]

    def gained(self, start_s: Floats, group: Ints | int) -> Floats:
        """[..., choices]: the utility of a group for each of them, begun at `start_s`."""
        late = penalty_by_kind(
            self._penalties,
            self._penalty_kind[group],
            self._deadline_s[group],
            start_s[..., None] + self._ends_s[group],
        )
        gained = (self._accuracy[group] * (1.0 - late)).sum(axis=-1)
        return np.where(self.variant[group] < 0, -np.inf, gained)  # no choice


def _by_choice(values: Floats) -> Floats:
    """[groups, choices, requests] of [groups, requests, choices]."""
    return np.ascontiguousarray(values.transpose(0, 2, 1))


def place_greedily(
    problem: PlanningProblem, groups: Sequence[Ints], *, by_accuracy: bool = False
) -> list[int]:
    """The steps of all groups; ties go to the earlier completion, then to the first name.

    `by_accuracy`: each group has its most accurate variant whatever its lateness.
    """
    free_s, loaded = problem.free_s.copy(), np.full(len(problem.free_s), -1)
    choices = GroupChoices(problem, groups)
    steps: list[int] = []
    for at, group in enumerate(groups):
        variant, worker = choices.variant[at], choices.worker[at]
        start_s = free_s[worker] + np.where(loaded[worker] == variant, 0.0, choices.swap_s[at])
        gained = choices.gained(np.full_like(start_s, -np.inf) if by_accuracy else start_s, at)
        end_s = start_s + choices.total_s[at]
        best = int(np.lexsort((end_s, -gained))[0])
        if choices.takes_time[at, best]:
            free_s[worker[best]], loaded[worker[best]] = end_s[best], variant[best]
        steps += (group * len(variant) + best).tolist()
    return steps
