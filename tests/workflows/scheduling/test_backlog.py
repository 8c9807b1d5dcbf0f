"""Device queues from assigned steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.plan.costs import AssignedStep, ModelCosts, device_queue, foreign_steps


def costs(_: str) -> ModelCosts:
    return ModelCosts(lambda size: 1.0 + 0.1 * size, max_batch=2, load_s=5.0, output_bytes=1.0)


def test_steps_of_a_model_form_batches_up_to_the_largest() -> None:
    queue = device_queue([AssignedStep("a", 0.0)] * 3, costs)
    assert [(batch.model, batch.size) for batch in queue.batches] == [("a", 2), ("a", 1)]


def test_a_batch_that_runs_takes_no_more_steps() -> None:
    queue = device_queue([AssignedStep("a", 0.0, -0.5), AssignedStep("a", 0.0, -0.1)], costs)
    assert [batch.size for batch in queue.batches] == [1, 1]
    assert queue.batches[0].start_s == -0.5
    assert queue.free_s == 0.6 + 1.1


def test_sent_steps_that_wait_share_a_batch() -> None:
    steps = [
        AssignedStep("a", 0.0, -0.5),
        AssignedStep("b", 0.0, -0.4),
        AssignedStep("b", 0.0, -0.1),
    ]
    queue = device_queue(steps, costs)
    assert [(batch.model, batch.size) for batch in queue.batches] == [("a", 1), ("b", 2)]


def test_steps_of_others_are_those_that_are_not_ones_own() -> None:
    foreign = foreign_steps({"b": 3, "a": 2, "c": 1}, {"a": 2, "b": 1, "c": 4}, -0.5)
    assert foreign == [AssignedStep("b", 0.0, -0.5)] * 2


def test_a_batch_of_others_has_run_since_the_device_began_it() -> None:
    queue = device_queue(foreign_steps({"a": 2}, {}, -1.0), costs)
    assert [(batch.size, batch.start_s) for batch in queue.batches] == [(2, -1.0)]
    assert queue.free_s == pytest.approx(0.2)


def test_work_of_others_comes_first() -> None:
    queue = device_queue([AssignedStep("a", 0.0)], costs, foreign_s=3.0)
    assert queue.batches[0].start_s == 3.0


def test_inputs_that_come_later_leave_room_before_their_batch() -> None:
    queue = device_queue([AssignedStep("a", 4.0)], costs)
    assert queue.free_s == 0.0
    assert queue.batches[0].start_s == 4.0


def test_an_idle_device_is_free_now() -> None:
    assert device_queue([], costs).free_s == 0.0


_steps = st.builds(
    AssignedStep, st.sampled_from("abc"), st.floats(0, 10), st.one_of(st.none(), st.floats(-5, 0))
)


@given(st.lists(_steps, max_size=12))
def test_no_step_is_lost(steps: list[AssignedStep]) -> None:
    queue = device_queue(steps, costs)
    assert sum(batch.size for batch in queue.batches) == len(steps)
    assert queue.free_s <= sum(costs("a").batch_s(1) for _ in steps) + 10.0
    assert all(batch.size <= 2 for batch in queue.batches)
