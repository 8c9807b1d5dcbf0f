"""The exact placement of a run against enumeration, and the paper's own example."""

import gc
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.simulated_workflows.placers import round_robin
from tests.workflows.scheduling.random_problems import earliest_finish_s, problems
from workflows.plan.problem import (
    Placement,
    Schedule,
    SchedulingProblem,
    SchedulingProblemError,
    Step,
    greedy,
)
from workflows.plan.speculative import speculative


@settings(max_examples=150, deadline=None)
@given(problems())
def test_no_schedule_ends_earlier(problem: SchedulingProblem) -> None:
    schedule = speculative(problem, max_states=10**6)
    assert schedule.exact
    assert schedule.finish_s == earliest_finish_s(problem)


@pytest.fixture(scope="module")
def own_garbage_alone() -> None:
    """What other tests keep alive took seconds of each collection."""
    gc.collect()
    gc.freeze()


@settings(max_examples=10, deadline=None)
@given(problems())
def test_a_search_leaves_nothing_to_the_garbage_collector(
    own_garbage_alone: None, problem: SchedulingProblem
) -> None:
    gc.collect()
    gc.disable()
    try:
        speculative(problem)
        assert gc.collect() == 0
    finally:
        gc.enable()


@settings(max_examples=60, deadline=None)
@given(problems(max_steps=6))
def test_the_order_of_devices_does_not_matter(problem: SchedulingProblem) -> None:
    order = sorted(range(len(problem.devices)), key=problem.devices.__getitem__)
    renamed = replace(
        problem,
        devices=[problem.devices[device] for device in order],
        free_s=[[row[device] for device in order] for row in problem.free_s],
        load_s=[[row[device] for device in order] for row in problem.load_s],
        compute_s=[[row[device] for device in order] for row in problem.compute_s],
        transfer_s=lambda source, step, origin, device: problem.transfer_s(
            source, step, order[origin], order[device]
        ),
    )
    names = [problem.devices[at.device] for at in speculative(problem, 10**6).placements]
    assert names == [renamed.devices[at.device] for at in speculative(renamed, 10**6).placements]


@settings(max_examples=60, deadline=None)
@given(problems(max_steps=6))
def test_what_stays_is_kept_and_the_rest_planned_anew(problem: SchedulingProblem) -> None:
    first = speculative(problem, 10**6)
    running = {first.order[0]: first.placements[first.order[0]]}
    again = speculative(replace(problem, placed=running), 10**6)
    assert again.placements[first.order[0]] == running[first.order[0]]


@settings(max_examples=60, deadline=None)
@given(problems(max_steps=6))
def test_a_search_cut_short_is_never_worse_than_greedy(problem: SchedulingProblem) -> None:
    schedule = speculative(problem, max_states=1)
    assert schedule.finish_s <= greedy(problem).finish_s
    assert schedule.finish_s >= speculative(problem, max_states=10**6).finish_s


@settings(max_examples=150, deadline=None)
@given(problems(), st.integers(1, 4))
def test_a_schedule_called_exact_is_the_optimum(problem: SchedulingProblem, states: int) -> None:
    schedule = speculative(problem, max_states=states)
    assert not schedule.exact or schedule.finish_s == earliest_finish_s(problem)


def test_a_search_cut_before_any_schedule_was_complete_is_not_exact() -> None:
    """All that one kept partial schedule leads to ends later than greedily placed steps."""
    problem = SchedulingProblem(
        steps=[Step("A"), Step("B"), Step("C")],
        devices=["one", "two"],
        free_s=[[0.0, 0.0]] * 3,
        load_s=[[0.0, 0.0]] * 3,
        compute_s=[[4.0, 4.0], [2.0, 2.0], [2.0, 3.0]],
        transfer_s=lambda *_: 0.0,
    )
    cut = speculative(problem, max_states=1)
    assert (cut.finish_s, cut.exact) == (5.0, False)
    whole = speculative(problem)
    assert (whole.finish_s, whole.exact) == (4.0, True)


@pytest.mark.parametrize("place", [greedy, round_robin])
def test_without_a_search_nothing_is_exact(place: Callable[[SchedulingProblem], Schedule]) -> None:
    assert not place(chain_of_section_3_2(3)).exact


def chain_of_section_3_2(steps: int) -> SchedulingProblem:
    """A and B are loaded on D1, B and C on D2; B's output takes longer to move than A's."""
    moved_s = [1.0, 3.0]
    return SchedulingProblem(
        steps=[Step("A"), Step("B", (0,)), Step("C", (1,))][:steps],
        devices=["D1", "D2"],
        free_s=[[0.0, 0.0]] * steps,
        load_s=[[0.0, 100.0], [0.0, 0.0], [100.0, 0.0]][:steps],
        compute_s=[[1.0, 1.0]] * steps,
        transfer_s=lambda source, step, origin, device: moved_s[source],
    )


def test_a_predicted_step_moves_the_one_before_it() -> None:
    devices = [at.device for at in speculative(chain_of_section_3_2(3)).placements]
    assert devices == [0, 1, 1]


def test_without_foresight_a_step_stays_with_its_input() -> None:
    assert [at.device for at in speculative(chain_of_section_3_2(2)).placements] == [0, 0]
    assert [at.device for at in greedy(chain_of_section_3_2(3)).placements] == [0, 0, 1]


def test_a_step_without_dependents_counts_although_others_follow() -> None:
    """The printed algorithm forgets its end: all of its (no) dependents are placed."""
    problem = SchedulingProblem(
        steps=[Step("slow"), Step("fast")],
        devices=["one", "two"],
        free_s=[[0.0, 0.0]] * 2,
        load_s=[[0.0, 0.0]] * 2,
        compute_s=[[9.0, 5.0], [1.0, 1.0]],
        transfer_s=lambda *_: 0.0,
    )
    schedule = speculative(problem)
    assert [at.device for at in schedule.placements] == [1, 0]
    assert schedule.finish_s == 5.0


def test_steps_take_devices_in_turn_past_those_that_can_not_run_them() -> None:
    problem = SchedulingProblem(
        steps=[Step("A")] * 4,
        devices=["b", "a", "c"],
        free_s=[[0.0] * 3] * 4,
        load_s=[[0.0] * 3, [float("inf"), 0.0, 0.0], [0.0] * 3, [0.0] * 3],
        compute_s=[[1.0] * 3] * 4,
        transfer_s=lambda *_: 0.0,
    )
    assert [at.device for at in round_robin(problem).placements] == [1, 2, 1, 0]


@pytest.mark.parametrize("place", [speculative, greedy, round_robin])
def test_a_step_that_takes_a_later_output_is_named(place) -> None:  # type: ignore[no-untyped-def]
    problem = replace(chain_of_section_3_2(2), steps=[Step("A", (1,)), Step("B")])
    with pytest.raises(SchedulingProblemError, match="takes the output of step 1, which does not"):
        place(problem)
    with pytest.raises(SchedulingProblemError, match="takes the output of step 7"):
        place(replace(problem, steps=[Step("A", (7,)), Step("B")]))


def test_a_step_that_no_device_can_run_is_named() -> None:
    problem = replace(
        chain_of_section_3_2(3), compute_s=[[1.0, 1.0], [float("inf")] * 2, [1.0, 1.0]]
    )
    with pytest.raises(SchedulingProblemError, match=r"step 1 \(B\)"):
        speculative(problem)


def test_without_steps_there_is_nothing_to_place() -> None:
    problem = SchedulingProblem([], ["one"], [], [], [], lambda *_: 0.0, placed={})
    assert speculative(problem).finish_s == 0.0


def test_a_running_step_is_an_input() -> None:
    problem = replace(chain_of_section_3_2(3), placed={0: Placement(1, 0.0, 4.0)})
    assert [at.device for at in speculative(problem).placements] == [1, 1, 1]
