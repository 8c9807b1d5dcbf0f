"""When a step's turn on a device comes: in a pause of its queue, or with a batch of its model."""

from __future__ import annotations

from workflows.plan.costs import (
    AssignedStep,
    Device,
    Links,
    ModelCosts,
    QueuedBatch,
    TransferCosts,
    device_queue,
    scheduling_problem,
)
from workflows.plan.problem import Step
from workflows.plan.speculative import KEEPS_S, is_outdated

COSTS = {name: ModelCosts(lambda size: 0.5 + 0.5 * size, 4, 3.0, 0.0) for name in "abc"}
LINKS = Links(*[TransferCosts(0.0, 1e9)] * 3)


def turn(queue: list[QueuedBatch], steps: list[Step], *, free_s: float = 0.0) -> tuple[float, ...]:
    """Free, load and compute time of the last step."""
    device = Device("d", "n", queue, free_s, loaded=frozenset("ab"))
    problem = scheduling_problem(steps, [device], COSTS, LINKS)
    return problem.free_s[-1][0], problem.load_s[-1][0], problem.compute_s[-1][0]


def test_a_batch_that_begins_later_holds_up_nobody() -> None:
    later = [QueuedBatch("b", 1, 5.0, 6.0)]
    assert turn(later, [Step("a")]) == (0.0, 0.0, 1.0)
    assert turn(later, [Step("b")]) == (0.0, 0.0, 1.0)  # alone ends at 1, with the batch at 6.5


def test_a_step_joins_a_batch_that_ends_sooner_than_it_would_alone() -> None:
    queue = [QueuedBatch("a", 1, 1.0, 2.0), QueuedBatch("b", 3, 2.0, 4.0)]
    assert turn(queue, [Step("a")], free_s=4.0) == (1.0, 0.0, 1.5)


def test_a_step_does_not_run_alone_before_a_batch_that_leaves_no_time_for_it() -> None:
    """With the batch it ends at 1.6, after it at 2.1."""
    assert turn([QueuedBatch("a", 1, 0.1, 1.1)], [Step("a")]) == (0.1, 0.0, 1.5)


def test_a_step_does_not_join_a_batch_that_begins_before_its_inputs() -> None:
    queue = [QueuedBatch("a", 1, 0.5, 1.5)]
    free_s, _, compute_s = turn(queue, [Step("b"), Step("a", (0,))])
    assert compute_s == 1.0
    assert free_s == 1.5  # its inputs are there at 1, amid the batch


def test_a_step_waits_for_a_pause_that_is_long_enough() -> None:
    queue = [QueuedBatch("b", 4, 0.5, 3.0), QueuedBatch("b", 4, 3.0, 5.5)]
    assert turn(queue, [Step("a")]) == (5.5, 0.0, 1.0)


def test_a_batch_that_comes_later_loads_nothing_before() -> None:
    assert turn([QueuedBatch("c", 4, 50.0, 52.5)], [Step("c")])[1] == 3.0
    assert turn([QueuedBatch("c", 4, 0.0, 2.5)], [Step("c")], free_s=2.5)[1] == 0.0


def test_later_batches_follow_each_other() -> None:
    steps = [AssignedStep("a", 2.0), AssignedStep("b", 2.0), AssignedStep("c", 9.0)]
    queue = device_queue(steps, COSTS.__getitem__)
    spans = [(each.model, each.start_s, each.end_s) for each in queue.batches]
    assert spans == [("a", 2.0, 3.0), ("b", 3.0, 4.0), ("c", 9.0, 10.0)]
    assert queue.free_s == 0.0


def test_a_plan_is_made_anew_for_surprises_and_when_it_is_old() -> None:
    assert is_outdated(is_foreseen=False, age_s=0.0)
    assert not is_outdated(is_foreseen=True, age_s=KEEPS_S / 2)
    assert is_outdated(is_foreseen=True, age_s=2 * KEEPS_S)
