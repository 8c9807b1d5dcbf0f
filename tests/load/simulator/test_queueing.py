"""Queue options of a run, and what an autoscaler reads of queued requests."""

from math import inf
from typing import Any

import pytest

from load.simulator.autoscaling import PlannedAutoscaler
from load.simulator.gateway import QueueOptions
from load.simulator.simulation import Simulation
from registry.domain.demand import QueueStats
from research.loading.baseline import baseline
from tests.load.simulator.small_cluster import (
    QUEUEING,
    M,
    ScriptedAutoscaler,
    cluster,
    records,
    took_s,
)
from tests.load.simulator.traces import Row, trace

WARM = {"at": {"n": "device"}, "infer": {1: "1s"}, "preprocess": "0s", "postprocess": "0s"}


def _run(
    plan: Any, rows: list[Row], queueing: QueueOptions, **options: Any
) -> list[dict[str, Any]]:
    deadline_s = options.pop("deadline_s", None)
    return records(
        Simulation(plan, trace(rows, deadline_s=deadline_s), QUEUEING, queueing=queueing, **options)
    )


def test_serves_late_serves_requests_past_their_deadline() -> None:
    rows: list[Row] = [(0.0, "m"), (0.1, "m")]
    strict = _run(cluster({}, WARM), rows, QueueOptions(), deadline_s=0.5)
    lenient = _run(cluster({}, WARM), rows, QueueOptions(serves_late=True), deadline_s=0.5)
    assert [row["status"] for row in strict] == [504, 504]
    assert [row["status"] for row in lenient] == [200, 200]
    assert [row["deadline_s"] for row in lenient] == pytest.approx([0.5, 0.5])
    assert took_s(lenient[1]) > 1.0


@pytest.mark.parametrize(("by_deadline", "last"), [(True, "far"), (False, "near")])
def test_queue_is_ordered_by_deadline_or_by_arrival(by_deadline: bool, last: str) -> None:
    plan = cluster(
        {},
        WARM | {"name": "first"},
        WARM | {"name": "far", "annotations": {"deadline": "50s"}},
        WARM | {"name": "near", "annotations": {"deadline": "5s"}},
    )
    rows: list[Row] = [(0.0, "first"), (0.1, "far"), (0.2, "near")]
    found = _run(plan, rows, QueueOptions(serves_late=True, by_deadline=by_deadline))
    assert max(found, key=lambda row: row["finished_s"])["model"] == last


def test_requests_that_may_not_load_wait_for_the_autoscaler() -> None:
    alone = _run(cluster({}), [(0.0, "m")], QueueOptions(may_load=False))
    assert [(row["status"], row["reason"]) for row in alone] == [(504, "queue-timeout")]

    scaler = ScriptedAutoscaler(10.0, lambda state, actions: actions.preload(M, "n"))
    [row] = _run(cluster({}), [(0.0, "m")], QueueOptions(may_load=False), autoscaler=scaler)
    assert row["status"] == 200
    assert row["finished_s"] > 10.0


@pytest.mark.parametrize("plans_first", [True, False])
def test_plans_first_shows_idle_pods_while_requests_are_queued(plans_first: bool) -> None:
    watcher = ScriptedAutoscaler(
        0.3,
        lambda state, actions: not state.pods["n"].slots_busy and bool(actions.waiting()),
        repeat=True,
    )
    rows: list[Row] = [(0.05 * at, "m") for at in range(6)]
    _run(cluster({}, WARM), rows, QueueOptions(plans_first=plans_first), autoscaler=watcher)
    assert any(watcher.results) is plans_first


def test_autoscaler_reads_queued_requests_and_the_use_of_copies() -> None:
    watcher = ScriptedAutoscaler(
        1.0, lambda state, actions: (actions.uses(), actions.waiting()), repeat=True
    )
    plan = cluster({}, WARM | {"infer": {1: "1500ms"}})
    key = plan.models[0].spec.key
    _run(
        plan,
        [(0.0, "m"), (0.2, "m"), (5.0, "m")],
        QueueOptions(serves_late=True),
        autoscaler=watcher,
        deadline_s=1.0,
    )
    first, second, _, later = watcher.results[:4]
    assert first[0][key]["n"].ongoing == 1
    assert first[0][key]["n"].served == 0
    assert first[1] == {M: QueueStats(1, 1, 0.2)}
    assert (second[0][key]["n"].ongoing, second[0][key]["n"].served) == (1, 1)
    assert second[1] == {}
    assert later[0][key]["n"].last_s == pytest.approx(3.0, abs=0.1)
    assert (later[0][key]["n"].ongoing, later[0][key]["n"].served) == (0, 2)


def test_a_copy_that_was_only_loaded_has_not_served() -> None:
    """The load itself uses the model so that it is not evicted."""
    watcher = ScriptedAutoscaler(
        3.0, lambda state, actions: actions.preload(M, "n"), lambda state, actions: actions.uses()
    )
    plan = cluster({}, {}, WARM | {"name": "other", "infer": {1: "9s"}})
    _run(plan, [(0.0, "other")], QueueOptions(), autoscaler=watcher)
    use = watcher.results[1][plan.models[0].spec.key]["n"]
    assert (use.ongoing, use.served, use.last_s) == (0, 0, -inf)


def test_baseline_scheduler_loads_for_queued_requests() -> None:
    plan = cluster({})
    scaler = PlannedAutoscaler(baseline(), plan, every_s=0.25)
    found = _run(
        plan,
        [(1.0, "m"), (30.0, "m")],
        QueueOptions(plans_first=True, may_load=False),
        autoscaler=scaler,
    )
    assert [(row["status"], row["start"]) for row in found] == [(200, "remote"), (200, "warm")]
    assert scaler.actions == {"load waiting": 1}
