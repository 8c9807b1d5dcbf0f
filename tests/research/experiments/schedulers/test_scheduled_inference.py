"""Runs in which a scheduler starts every inference, by a rule of `inference_rules`."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from load.simulator.gateway import QueueOptions
from load.simulator.pods.simulated_request import SimulatedRequest
from load.simulator.simulated_cluster import SimulatedCluster
from load.simulator.simulation import Simulation
from registry.domain.cluster import ClusterState
from registry.domain.model import LoadFailure
from research.experiments.schedulers.inference_rules import (
    InferenceRule,
    strategies,
    three_phases,
    three_phases_by_deadline,
)
from research.experiments.schedulers.scheduled_placer import ScheduledPlacer
from tests.load.simulator.small_cluster import M, ScriptedAutoscaler, cluster, records
from tests.load.simulator.traces import Row, trace

POD = {"slots": 1}
WARM: dict[str, Any] = {
    "at": {"n": "device"},
    "infer": {1: "1s", 4: "2s"},
    "preprocess": "0s",
    "postprocess": "0s",
}


def _run(
    rule: InferenceRule,
    rows: list[Row],
    *models: dict[str, Any],
    pods: tuple[Any, ...] = (POD,),
    is_serial: bool = False,
    scaler: Any = None,
    deadline_s: float | list[float] | None = None,
) -> list[dict[str, Any]]:
    placer = partial(
        ScheduledPlacer[SimulatedRequest],
        rule=rule,
        by_deadline=rule is not three_phases,
        is_serial=is_serial,
    )
    queueing = QueueOptions(serves_late=True, placer=placer)
    return records(
        Simulation(
            cluster({"pods": list(pods)}, *models),
            trace(rows, deadline_s=deadline_s),
            queueing=queueing,
            autoscaler=scaler,
        )
    )


def _order(rows: list[dict[str, Any]]) -> str:
    return " ".join(row["model"] for row in sorted(rows, key=lambda row: row["finished_s"]))


THREE = [
    WARM | {"name": "first", "annotations": {"deadline": "1s"}},
    WARM | {"name": "old", "annotations": {"deadline": "60s"}},
    WARM | {"name": "new", "annotations": {"deadline": "1200ms"}},
]


@pytest.mark.parametrize(
    ("rule", "order"),
    [
        (three_phases, "first new old"),  # at 1 s the new request has waited 0.8 of its 1.2 s
        (three_phases_by_deadline, "first new old"),
        (strategies, "first old new"),  # the new one cannot be in time
    ],
)
def test_rules_decide_which_queued_request_starts(rule: InferenceRule, order: str) -> None:
    found = _run(rule, [(0.0, "first"), (0.1, "old"), (0.2, "new")], *THREE)
    assert _order(found) == order
    assert {row["status"] for row in found} == {200}


@pytest.mark.parametrize("rule", [three_phases, three_phases_by_deadline])
def test_a_starved_request_behind_others_of_its_model_starts_first(rule: InferenceRule) -> None:
    """When the first ends at 1 s, the last has waited 0.65 s of its 1 s, those before it less."""
    rows: list[Row] = [(0.0, "m"), (0.1, "m"), (0.2, "m"), (0.3, "m"), (0.35, "m")]
    found = _run(rule, rows, WARM, deadline_s=[9.0, 60.0, 60.0, 60.0, 1.0])
    ends_s = [row["finished_s"] for row in sorted(found, key=lambda row: row["scheduled_s"])]
    assert ends_s[4] == sorted(ends_s)[1]


def test_machines_take_turns() -> None:
    warm = WARM | {"at": {"n-0": "device", "n-1": "device"}, "infer": {1: "100ms"}}
    found = _run(three_phases, [(float(at), "m") for at in range(4)], warm, pods=(POD, POD))
    assert [row["predict_pod"] for row in found] == ["n-0", "n-1", "n-0", "n-1"]


def test_requests_wait_for_a_load_by_the_autoscaler() -> None:
    scaler = ScriptedAutoscaler(5.0, lambda state, actions: actions.preload(M, "n"))
    [row] = _run(three_phases, [(0.0, "m")], {}, scaler=scaler)
    assert row["status"] == 200
    assert row["finished_s"] > 5.0


@pytest.mark.parametrize("is_serial", [False, True])
def test_a_machine_that_loads_serves_only_without_one_action_at_a_time(is_serial: bool) -> None:
    models = [WARM | {"name": "warm"}, {"name": "m"}]  # 100 MB at 100 MB/s: more than a second
    scaler = ScriptedAutoscaler(0.1, lambda state, actions: actions.preload(M, "n"))
    found = _run(
        three_phases, [(0.1001, "warm"), (0.2, "m")], *models, is_serial=is_serial, scaler=scaler
    )
    warm = next(row for row in found if row["model"] == "warm")
    assert (warm["finished_s"] > 2.0) is is_serial


def test_a_batch_of_clockwork_starts_together() -> None:
    model = WARM | {"annotations": {"max-batch-wait": "1ms", "max-batch-size": "4"}}
    other = WARM | {"name": "other"}
    wide = ({"slots": 4},)
    rows: list[Row] = [(0.0, "other"), *[(0.1 * at, "m") for at in (1, 2, 3, 4)]]
    found = _run(strategies, rows, model, other, pods=wide, deadline_s=30.0)
    ends = {row["finished_s"] for row in found if row["model"] == "m"}
    assert len(ends) == 1
    assert ends.pop() == pytest.approx(3.0, abs=0.01)


def test_queued_requests_of_a_model_whose_load_failed_are_rejected() -> None:
    def fail(state: ClusterState, _: SimulatedCluster) -> None:
        record = state.models[M]
        failure = LoadFailure(record.spec.key, "ModelLoadFailed", "no such file", 1, 9e9)
        state.models[M] = replace(record, failure=failure)

    [row] = _run(three_phases, [(0.0, "m")], {}, scaler=ScriptedAutoscaler(1.0, fail))
    assert (row["status"], row["reason"]) == (503, "load-failed")
    assert 1.0 <= row["finished_s"] < 1.5
