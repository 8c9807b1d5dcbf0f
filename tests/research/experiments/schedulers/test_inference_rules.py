"""The INFER actions of Blinowski et al. 2024: which request runs next, and on which machine."""

from math import inf

import pytest

from research.experiments.schedulers.inference_rules import (
    Inference,
    InferenceRule,
    Machine,
    ModelQueue,
    QueuedRequest,
    strategies,
    three_phases,
    three_phases_by_deadline,
)

NOW_S = 100.0
RULES = (three_phases, three_phases_by_deadline, strategies)


def queue(
    key: str, *requests: tuple[float, float], at: str = "p", joins: bool = False
) -> ModelQueue:
    """Requests by arrival and deadline from now; a batch takes 0.1 s and 0.1 s per request."""
    return ModelQueue(
        key,
        [QueuedRequest(NOW_S + arrived_s, NOW_S + due_s) for arrived_s, due_s in requests],
        frozenset(at.split()),
        lambda count: 0.1 + 0.1 * count,
        is_continuous=joins,
    )


def run(
    rule: InferenceRule, queues: list[ModelQueue], *machines: Machine, last: str = ""
) -> list[tuple[str, int, int, str]]:
    found = rule(queues, machines or (Machine("p"),), NOW_S, last)
    return [tuple(each) for each in found]  # type: ignore[misc]


def test_starved_requests_start_before_those_that_arrived_earlier() -> None:
    earlier, starved = queue("earlier", (-2.0, 8.0)), queue("starved", (-1.0, 0.5))
    assert run(three_phases, [earlier, starved]) == [("starved", 0, 1, "p")]
    not_starved = queue("starved", (-1.0, 0.7))  # 59 % of its time has passed
    assert run(three_phases, [earlier, not_starved]) == [("earlier", 0, 1, "p")]


def test_requests_without_a_deadline_are_never_starved() -> None:
    queues = [queue("endless", (-99.0, inf)), queue("starved", (-1.0, 0.1))]
    assert run(three_phases, queues) == [("starved", 0, 1, "p")]


def test_a_starved_request_behind_one_that_is_not_starts_first() -> None:
    """In a queue by arrival, as one with much time left is ahead of one with little."""
    mixed = queue("m", (-4.0, 96.0), (-3.0, 1.0))
    assert run(three_phases, [mixed]) == [("m", 1, 1, "p")]
    other = queue("other", (-5.0, 95.0))
    assert run(three_phases, [other, mixed]) == [("m", 1, 1, "p")]


def test_after_the_starved_requests_the_others_start_in_their_order() -> None:
    mixed = queue("m", (-4.0, 96.0), (-3.0, 1.0), (-2.0, 98.0), (-1.5, 0.5), at="a b c d")
    found = run(three_phases, [mixed], *(Machine(name) for name in "abcd"))
    assert [first for _, first, _, _ in found] == [1, 3, 0, 2]


def test_a_starved_request_that_found_no_idle_machine_joins_in_its_turn() -> None:
    running = Machine("p", 2, frozenset({"llm"}))
    llm = queue("llm", (-4.0, 96.0), (-3.0, 1.0), (-2.0, 98.0), joins=True)
    assert run(three_phases, [llm], running) == [("llm", 0, 1, "p"), ("llm", 1, 1, "p")]


def test_continuous_batches_take_requests_where_they_run_before_idle_machines_are_used() -> None:
    machines = Machine("a", 1), Machine("b", 1, frozenset({"llm"}))
    both = queue("llm", (-1.0, 9.0), at="a b", joins=True)
    assert run(three_phases, [both], *machines) == [("llm", 0, 1, "b")]
    without = queue("llm", (-1.0, 9.0), at="a b")
    assert run(three_phases, [without], *machines) == [("llm", 0, 1, "a")]


@pytest.mark.parametrize("is_continuous", [False, True])
def test_a_machine_that_runs_another_model_takes_no_request(is_continuous: bool) -> None:
    busy = Machine("p", 4, frozenset({"other"}))
    assert run(three_phases, [queue("m", (-1.0, 9.0), joins=is_continuous)], busy) == []


def test_starved_requests_take_idle_machines_only() -> None:
    running = Machine("p", 4, frozenset({"llm"}))
    starved = queue("starved", (-1.0, 0.1))
    later = queue("llm", (-0.5, 9.0), joins=True)
    assert run(three_phases, [starved, later], running) == [("llm", 0, 1, "p")]


def test_all_slots_of_a_batch_fill_and_no_more_than_the_queue_has() -> None:
    running = Machine("p", 2, frozenset({"llm"}))
    llm = queue("llm", (-3.0, 9.0), (-2.0, 9.0), (-1.0, 9.0), joins=True)
    assert run(three_phases, [llm], running) == [("llm", 0, 1, "p"), ("llm", 1, 1, "p")]
    wide = Machine("p", 9, frozenset({"llm"}))
    assert len(run(three_phases, [llm], wide)) == 3


def test_machines_take_turns() -> None:
    machines = [Machine(name) for name in "abc"]
    two = queue("m", (-2.0, 9.0), (-1.0, 9.0), at="a b c")
    assert [each[3] for each in run(three_phases, [two], *machines, last="b")] == ["c", "a"]


def test_requests_start_in_the_order_of_arrival_or_of_deadlines() -> None:
    queues = [queue("first", (-2.0, 9.0)), queue("urgent", (-1.0, 5.0))]
    assert run(three_phases, queues) == [("first", 0, 1, "p")]
    assert run(three_phases_by_deadline, queues) == [("urgent", 0, 1, "p")]


def test_the_tightest_strategy_that_is_in_time_starts() -> None:
    queues = [queue("loose", (-2.0, 3.0)), queue("tight", (-1.0, 1.0))]
    assert run(strategies, queues) == [("tight", 0, 1, "p")]


def test_a_larger_batch_is_tighter_while_its_first_deadline_holds() -> None:
    batch = queue("m", (-1.0, 0.45), (-1.0, 9.0), (-1.0, 9.0), (-1.0, 9.0))
    # 3 requests take 0.4 s; 4 take 0.5 s, too long for the first of them.
    assert run(strategies, [batch], Machine("p", 8)) == [("m", 0, 3, "p")]
    assert run(strategies, [batch], Machine("p", 2)) == [("m", 0, 2, "p")]


def test_work_that_cannot_be_in_time_waits_for_work_that_can() -> None:
    late, in_time = queue("late", (-3.0, 0.1)), queue("other", (-1.0, 3.0))
    assert run(strategies, [late, in_time]) == [("other", 0, 1, "p")]
    assert run(strategies, [late]) == [("late", 0, 1, "p")]


def test_a_models_late_requests_do_not_hold_up_those_behind_them() -> None:
    mixed = queue("m", (-3.0, -1.0), (-2.0, 0.0), (-1.0, 2.0))
    assert run(strategies, [mixed]) == [("m", 2, 1, "p")]


def test_late_work_is_served_by_deadline() -> None:
    queues = [queue("later", (-3.0, -0.5)), queue("earlier", (-2.0, -1.0))]
    assert run(strategies, queues) == [("earlier", 0, 1, "p")]


def test_machines_start_other_requests_of_one_queue() -> None:
    machines = Machine("a", 2), Machine("b", 2)
    five = queue("m", *[(-1.0, 5.0)] * 5, at="a b")
    assert run(strategies, [five], *machines) == [("m", 0, 2, "a"), ("m", 2, 2, "b")]


@pytest.mark.parametrize("rule", RULES)
def test_models_run_only_where_they_are_loaded_and_machines_are_free(rule: InferenceRule) -> None:
    waiting = queue("m", (-1.0, 9.0), at="a")
    assert run(rule, [waiting], Machine("b")) == []
    assert run(rule, [waiting], Machine("a", 0)) == []
    assert run(rule, [waiting], Machine("a", 1, frozenset({"m"}))) == []
    assert run(rule, [waiting], Machine("a"), Machine("b")) == [Inference("m", 0, 1, "a")]


@pytest.mark.parametrize("rule", RULES)
def test_no_request_starts_twice_and_machines_given_stay_as_they_are(rule: InferenceRule) -> None:
    machines = [Machine(name, 3) for name in "abcd"]
    queues = [queue(key, *[(-1.0, 2.0)] * 4, at="a b c d", joins=True) for key in ("m", "n")]
    started = [
        (key, first + offset)
        for key, first, count, _ in run(rule, queues, *machines)
        for offset in range(count)
    ]
    assert len(set(started)) == len(started) > 3
    assert machines == [Machine(name, 3) for name in "abcd"]
