"""The marks of the planners' benchmark, from runs made by hand, and its problems."""

import random
from dataclasses import replace

import pytest

from autoscaler.placement.problem import validate
from benchmarks.placement import PlanRun, marks, random_problem, summary
from research.placement.fleet import accelerators_of

_RUNS = (
    *(PlanRun(f"8x8 {at}", "wao-milp", 0.5, 100.0, 0.0) for at in range(20)),
    PlanRun("8x8 0", "wao-usher", 0.1, 90.0, 0.2),
    PlanRun("8x8 0", "predicted-goodput", 0.3, 99.5, 0.0, 0.995),
    PlanRun("100x100", "wao-milp", 4.0, 100.0, 0.05),
)


def _missed(runs: tuple[PlanRun, ...]) -> list[str]:
    return [each.promise for each in marks(runs) if not each.is_reached]


def test_all_marks_are_reached() -> None:
    assert _missed(_RUNS) == []
    assert "| 8x8 | wao-milp | 20 | 0.500 | 0.500 | 0.500 | 0.00% |" in summary(_RUNS)


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({0: {"gap_ratio": 0.01}}, "all proven optimal"),
        ({0: {"cpu_s": 1.5}, 1: {"cpu_s": 1.5}}, "95 % within 1 s"),
        ({0: {"cpu_s": 3.5}}, "all within 3 s"),
        ({20: {"cpu_s": 1.2}}, "Usher at 8x8 within 1 s"),
        ({21: {"others_ratio": 0.98}}, "99 % of the best other plan"),
        ({21: {"cpu_s": 10.2}}, "ours within 10 s"),
        ({22: {"cpu_s": 5.2}}, "100x100 within 5 s"),
    ],
)
def test_each_mark_can_be_missed(changed: dict[int, dict[str, float]], missed: str) -> None:
    runs = tuple(
        replace(each, **changed.get(at, {}))  # type: ignore[arg-type]  # all are floats
        for at, each in enumerate(_RUNS)
    )
    [promise] = _missed(runs)
    assert missed in promise


@pytest.mark.parametrize("seed", range(5))
def test_random_problems_are_valid_and_equal_by_seed(seed: int) -> None:
    profiles, workloads = random_problem(random.Random(seed), 8)
    validate(workloads, accelerators_of("v100", 8), profiles)
    assert (profiles, workloads) == random_problem(random.Random(seed), 8)
