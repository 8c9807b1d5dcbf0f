"""Other ways of queueing than the live gateway's, and what an autoscaler sees of who waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autoscaler.loading.baseline import baseline
from load.simulator.autoscaling import PlannedAutoscaler
from load.simulator.queueing import QueueOptions
from load.simulator.simulation import Simulation
from registry.domain.demand import QueueStats
from registry.domain.model import ModelName, RoutingPolicy
from tests.load.simulator.test_simulate import cluster, records, took_s
from tests.load.simulator.traces import Row, trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from registry.domain.cluster import ClusterState

M = ModelName("default", "m")
WARM = {"at": {"n": "device"}, "infer": {1: "1s"}, "preprocess": "0s", "postprocess": "0s"}


class Watcher:
    """Notes what it is told at every tick, and does nothing."""

    def __init__(self, every_s: float, note: Callable[[ClusterState, Any], Any]) -> None:
        self.every_s = every_s
        self.noted: list[Any] = []
        self._note = note

    def arrived(self, model: ModelName, now_s: float) -> None:
        pass

    def tick(self, state: ClusterState, now_s: float, actions: Any) -> None:
        self.noted.append(self._note(state, actions))


def _run(
    plan: Any, rows: list[Row], queueing: QueueOptions, **options: Any
) -> list[dict[str, Any]]:
    deadline_s = options.pop("deadline_s", None)
    return records(
        Simulation(
            plan, trace(rows, deadline_s=deadline_s), RoutingPolicy.COLOCATION_QUEUEING,
            queueing=queueing, **options,
        )
    )  # fmt: skip


def test_who_is_late_is_served_where_deadlines_are_wishes() -> None:
    rows: list[Row] = [(0.0, "m"), (0.1, "m")]
    strict = _run(cluster({}, WARM), rows, QueueOptions(), deadline_s=0.5)
    lenient = _run(cluster({}, WARM), rows, QueueOptions(serves_late=True), deadline_s=0.5)
    assert [row["status"] for row in strict] == [504, 504]
    assert [row["status"] for row in lenient] == [200, 200]
    assert [row["deadline_s"] for row in lenient] == pytest.approx([0.5, 0.5])
    assert took_s(lenient[1]) > 1.0


@pytest.mark.parametrize(("by_deadline", "last"), [(True, "far"), (False, "near")])
def test_queues_are_by_deadline_or_by_arrival(by_deadline: bool, last: str) -> None:
    plan = cluster(
        {},
        WARM | {"name": "first"},
        WARM | {"name": "far", "annotations": {"deadline": "50s"}},
        WARM | {"name": "near", "annotations": {"deadline": "5s"}},
    )
    rows: list[Row] = [(0.0, "first"), (0.1, "far"), (0.2, "near")]
    found = _run(plan, rows, QueueOptions(serves_late=True, by_deadline=by_deadline))
    assert max(found, key=lambda row: row["finished_s"])["model"] == last


def test_requests_that_may_not_load_wait_for_who_does() -> None:
    alone = _run(cluster({}), [(0.0, "m")], QueueOptions(may_load=False))
    assert [(row["status"], row["reason"]) for row in alone] == [(504, "queue-timeout")]

    def load(state: ClusterState, actions: Any) -> bool:
        return bool(actions.preload(M, "n"))

    [row] = _run(
        cluster({}), [(0.0, "m")], QueueOptions(may_load=False), autoscaler=Watcher(10.0, load)
    )
    assert row["status"] == 200
    assert row["finished_s"] > 10.0


@pytest.mark.parametrize("plans_first", [True, False])
def test_who_plans_first_sees_machines_idle_while_requests_wait(plans_first: bool) -> None:
    def note(state: ClusterState, actions: Any) -> bool:
        return not state.pods["n"].slots_busy and bool(actions.waiting())

    watcher = Watcher(0.3, note)
    rows: list[Row] = [(0.05 * at, "m") for at in range(6)]
    _run(cluster({}, WARM), rows, QueueOptions(plans_first=plans_first), autoscaler=watcher)
    assert any(watcher.noted) is plans_first


def test_an_autoscaler_sees_who_waits_and_how_copies_are_used() -> None:
    watcher = Watcher(1.0, lambda state, actions: (actions.uses(), actions.waiting()))
    plan = cluster({}, WARM | {"infer": {1: "1500ms"}})
    key = plan.models[0].spec.key
    _run(plan, [(0.0, "m"), (0.2, "m"), (5.0, "m")], QueueOptions(serves_late=True),
         autoscaler=watcher, deadline_s=1.0)  # fmt: skip
    first, second, _, later = watcher.noted[:4]
    assert first[0][key]["n"].ongoing == 1
    assert first[0][key]["n"].served == 0
    assert first[1] == {M: QueueStats(1, 1, 0.2)}
    assert (second[0][key]["n"].ongoing, second[0][key]["n"].served) == (1, 1)
    assert second[1] == {}
    assert later[0][key]["n"].last_s == pytest.approx(3.0, abs=0.1)
    assert (later[0][key]["n"].ongoing, later[0][key]["n"].served) == (0, 2)


def test_a_scheduler_in_the_gateways_place_loads_for_who_waits() -> None:
    plan = cluster({})
    scaler = PlannedAutoscaler(baseline(), plan, every_s=0.25, is_forecasting=False)
    found = _run(
        plan, [(1.0, "m"), (30.0, "m")], QueueOptions(plans_first=True, may_load=False),
        autoscaler=scaler,
    )  # fmt: skip
    assert [(row["status"], row["start"]) for row in found] == [(200, "remote"), (200, "warm")]
    assert scaler.actions == {"load waiting": 1}
