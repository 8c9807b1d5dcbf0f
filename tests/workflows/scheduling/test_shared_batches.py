"""Calls of one model that come together are placed as one batch where that ends sooner."""

import random
from collections.abc import Mapping, Sequence
from functools import partial

from tests.workflows.scheduling.test_turns import COSTS, LINKS
from workflows.plan.costs import Device, QueuedBatch, scheduling_problem
from workflows.plan.problem import Placement, Schedule, Step
from workflows.plan.speculative import (
    MergedSteps,
    place_sharing_batches,
    speculative,
    ways_to_merge,
)

ROUND = [Step("a"), Step("a"), Step("a"), Step("b", (0, 1, 2))]


def largest(model: str) -> int:
    return COSTS[model].max_batch


def place(
    steps: Sequence[Step], devices: Sequence[Device], placed: Mapping[int, Placement]
) -> Schedule:
    def one_way(way: MergedSteps, fixed: Mapping[int, Placement]) -> Schedule:
        return speculative(scheduling_problem(way.steps, devices, COSTS, LINKS, placed=fixed))

    return place_sharing_batches(steps, placed, largest, one_way)


def test_twins_are_merged_in_halves_and_as_a_whole() -> None:
    whole = ways_to_merge(ROUND, {}, largest)[-1]
    assert whole.steps == (Step("a", calls=3), Step("b", (0,)))
    assert whole.position_of == (0, 0, 0, 1)
    assert [len(way.steps) for way in ways_to_merge(ROUND, {}, largest)] == [4, 3, 2]


def test_no_batch_is_larger_than_its_model_allows() -> None:
    [_, _, whole] = ways_to_merge([Step("a")] * 9, {}, largest)
    assert [step.calls for step in whole.steps] == [4, 4, 1]


def test_placed_calls_stay_alone() -> None:
    [alone, both] = ways_to_merge(ROUND, {0: Placement(0, 0.0, 1.0)}, largest)
    assert len(alone.steps) == 4
    assert [step.calls for step in both.steps] == [1, 2, 1]


def test_one_device_runs_a_round_as_one_batch() -> None:
    [device] = [Device("d", "n", loaded=frozenset("ab"))]
    schedule = place(ROUND, [device], {})
    assert [at.end_s for at in schedule.placements] == [2.0, 2.0, 2.0, 3.0]  # alone: 4 in all


def test_free_devices_run_a_round_side_by_side() -> None:
    devices = [Device(f"d{at}", "n", loaded=frozenset("ab")) for at in range(3)]
    schedule = place(ROUND, devices, {})
    assert {at.device for at in schedule.placements[:3]} == {0, 1, 2}
    assert schedule.finish_s == 2.0


def test_a_schedule_is_exact_if_no_way_of_sharing_was_cut_short() -> None:
    devices = [Device(f"d{at}", "n", loaded=frozenset("ab")) for at in range(2)]

    def one_way(way: MergedSteps, fixed: Mapping[int, Placement], cut: int) -> Schedule:
        problem = scheduling_problem(way.steps, devices, COSTS, LINKS, placed=fixed)
        return speculative(problem, 1 if len(way.steps) == cut else 10**6)

    def is_exact(cut: int) -> bool:
        place = partial(one_way, cut=cut)
        return place_sharing_batches(ROUND, {}, largest, place).exact

    assert is_exact(cut=0)
    assert not is_exact(cut=4)


def test_a_round_joins_a_queued_batch_with_room_for_it() -> None:
    def finish_s(queued: int) -> float:
        queue = [QueuedBatch("b", 1, 0.0, 1.0), QueuedBatch("a", queued, 1.0, 2.0)]
        device = Device("d", "n", queue, 2.0, loaded=frozenset("ab"))
        return place(ROUND[:3], [device], {}).finish_s

    assert finish_s(1) == 1.0 + 2.5
    assert finish_s(2) == 2.0 + 2.0  # four are the most


def test_it_never_ends_later_than_with_each_call_alone() -> None:
    rng = random.Random(4)
    for _ in range(60):
        devices = [
            Device(f"d{at}", "n", free_s=rng.choice([0.0, 0.7, 2.0]), loaded=frozenset("ab"))
            for at in range(rng.randint(1, 3))
        ]
        steps = [Step("a")] * rng.randint(1, 5)
        steps.append(Step("b", tuple(range(len(steps)))))
        alone = speculative(scheduling_problem(steps, devices, COSTS, LINKS))
        schedule = place(steps, devices, {})
        assert schedule.finish_s <= alone.finish_s + 1e-9
        assert len(schedule.placements) == len(steps)
