"""Applications in the simulator: the live gateway's windows in virtual time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from load.errors import InvalidCluster
from load.schema import ANSWER_SCHEMA
from load.simulator.cluster.plan import ClusterPlan
from load.simulator.simulation import Simulation
from registry.domain.model import ModelName
from tests.load.simulator.small_cluster import cluster, records
from tests.load.simulator.traces import Row, trace
from variants.planning.window import SelectionPlan, Window

SPEC = {"classes": ["no", "yes"], "deadline": "500ms", "policy": "lo-edf"}
POOR, GOOD = [[6, 4], [4, 6]], [[9, 1], [1, 9]]
FIXED: dict[str, Any] = {"window": {"length": "100ms", "fixed": True}}


def _model(name: str, infer: str, application: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "infer": {1: infer},
        "batching": False,
        "assets": "0s",
        "size": "1MB",
        "annotations": {"application": application},
        "at": {"n": "device"},
    } | more


def _application(name: str = "app", **spec: Any) -> dict[str, Any]:
    short = name.rpartition("/")[2]
    return {
        "name": name,
        "spec": SPEC | spec,
        "profile": {f"{short}-fast": POOR, f"{short}-slow": GOOD},
    }


def _plan(*, slots: int = 4, application: dict[str, Any] | None = None) -> ClusterPlan:
    found: ClusterPlan = cluster(
        {"pods": [{"slots": slots}]},
        _model("app-fast", "10ms", "app"),
        _model("app-slow", "200ms", "app"),
        applications=[application or _application()],
    )
    return found


def _run(plan: ClusterPlan, rows: list[Row], **options: Any) -> list[dict[str, Any]]:
    run = Simulation(plan, trace(rows, **options))
    assert run.schema == ANSWER_SCHEMA
    return records(run)


def test_the_deadline_chooses_the_variant_and_answers_bear_the_applications_name() -> None:
    found = _run(_plan(), [(0.0, "app"), (1.0, "app")], deadline_s=[0.5, 0.05])
    assert [each["variant"] for each in found] == ["app-slow", "app-fast"]
    assert {each["model"] for each in found} == {"app"}
    assert [each["status"] for each in found] == [200, 200]
    assert [each["expected_utility"] for each in found] == pytest.approx([0.9, 0.6])


def test_answers_are_those_that_variants_gave_to_the_examples(tmp_path: Path) -> None:
    file = tmp_path / "examples.safetensors"
    save_file(
        {
            "features": np.zeros((2, 1), np.float32),
            "labels": np.array([0, 1]),
            "predicted app-slow": np.array([0, 1]),
            "predicted app-fast": np.array([1, 0]),
        },
        file,
    )
    plan = _plan(application=_application() | {"examples": str(file)})
    right, wrong = _run(plan, [(0.0, "app"), (1.0, "app")], deadline_s=[0.5, 0.05])
    assert (right["prediction"] == right["label"], right["utility"]) == (True, 1.0)
    assert (wrong["prediction"] == wrong["label"], wrong["utility"]) == (False, 0.0)


def test_late_requests_are_refused_where_the_application_says_so() -> None:
    plan = _plan(slots=1, application=_application(late="refuse", policy="max-accuracy-edf"))
    found = _run(plan, [(0.0, "app"), (0.01, "app"), (0.02, "app"), (0.03, "app")])
    assert [each["status"] for each in found] == [200, 200, 504, 504]
    assert {each["reason"] for each in found[2:]} == {"deadline"}


def test_requests_without_a_slot_join_the_next_window() -> None:
    run = Simulation(
        _plan(slots=1, application=_application(**FIXED)),
        trace([(0.0, "app"), (0.01, "app"), (0.02, "app")], deadline_s=5.0),
    )
    assert run.applications is not None
    planned: list[tuple[Window, SelectionPlan | None]] = []
    run.applications.planned = planned
    assert [each["status"] for each in records(run)] == [200] * 3
    sizes = [len(window.requests) for window, _ in planned]
    assert sizes[0] == 3
    assert sizes[-1] == 1
    assert sizes == sorted(sizes, reverse=True)


def test_groups_are_planned_as_batches_where_pods_batch() -> None:
    """Eight single requests would take 1.6 s; the batch that the profile promises takes 0.3 s."""
    times = {1: "200ms", 8: "300ms"}
    chosen = {}
    for batching in (True, False):
        plan = cluster(
            {"pods": [{"slots": 8}]},
            _model("app-fast", "10ms", "app"),
            _model("app-slow", "200ms", "app", batching=batching) | {"infer": times},
            applications=[_application(deadline="800ms", policy="grouped", **FIXED)],
        )
        found = _run(plan, [(at / 1000, "app") for at in range(8)])
        chosen[batching] = {each["variant"] for each in found}
    assert chosen == {True: {"app-slow"}, False: {"app-fast"}}


@pytest.mark.parametrize(
    ("window", "busy", "waited_s"),
    [
        pytest.param({"length": "1s"}, False, (0.0, 0.001), id="a suitable pod idles: at once"),
        pytest.param({"length": "50ms"}, True, (0.05, 0.051), id="when its time is over"),
        pytest.param({"length": "1s"}, True, (0.2, 0.3), id="when the deadline would be missed"),
        pytest.param({"length": "1s", "fixed": True}, True, (1.0, 1.001), id="fixed: only then"),
    ],
)
def test_when_a_window_closes(
    window: dict[str, Any], busy: bool, waited_s: tuple[float, float]
) -> None:
    rows: list[Row] = [(0.0, "app"), (0.01, "app")] if busy else [(0.01, "app")]
    plan = _plan(application=_application(window=window, policy="max-accuracy-edf"))
    run = Simulation(plan, trace(rows, deadline_s=[5.0, 0.3][-len(rows) :]))
    assert run.applications is not None
    planned: list[tuple[Window, SelectionPlan | None]] = []
    run.applications.planned = planned
    assert {each["status"] for each in records(run)} == {200}
    last = planned[-1][0]
    least_s, most_s = waited_s
    waited = last.now_s - last.requests[0].arrival_s
    if window.get("fixed"):
        waited = last.now_s - min(each.arrival_s for each in last.requests)
    assert least_s <= waited <= most_s


def test_tenants_take_turns_in_being_planned() -> None:
    names = [("a", "one", "lo-edf"), ("a", "two", "grouped"), ("b", "one", "lo-edf")]
    plan = cluster(
        {"pods": [{"slots": 8}]},
        *(
            _model(f"{tenant}/{name}-{speed}", "10ms", name)
            for tenant, name, _ in names
            for speed in ("fast", "slow")
        ),
        applications=[
            _application(f"{tenant}/{name}", policy=policy, **FIXED)
            for tenant, name, policy in names
        ],
    )
    rows = [(0.0, name) for _, name, _ in names]
    run = Simulation(plan, trace(rows, tenants=[tenant for tenant, _, _ in names]))
    assert run.applications is not None
    planned: list[tuple[Window, SelectionPlan | None]] = []
    run.applications.planned = planned
    assert [each["status"] for each in records(run)] == [200] * 3
    assert [window.requests[0].application for window, _ in planned] == ["a/two", "b/one", "a/one"]


def test_what_requests_lose_for_want_of_a_variant_pays_for_its_load() -> None:
    plan = cluster(
        {"pods": [{"slots": 4}]},
        _model("app-fast", "10ms", "app"),
        _model("app-slow", "20ms", "app", at={}, load={"remote": "1s"}),
        applications=[_application(deadline="100ms")],
    )
    # Each request loses (0.9 - 0.6) * 0.1 s: the load of a second is worth 33 of them.
    run = Simulation(plan, trace([(at * 0.1, "app") for at in range(80)]))
    slow = run.registry.state.models[ModelName("default", "app-slow")].spec.key
    run.set_measured_times({slow: {"load:remote": 1.0}})
    found = records(run)
    assert [each["status"] for each in found] == [200] * 80
    chosen = [each["variant"] for each in found]
    first = chosen.index("app-slow")
    assert set(chosen[:first]) == {"app-fast"}
    assert set(chosen[first:]) == {"app-slow"}
    assert 20 <= first <= 60
    assert sum(run.summary.loads_started.values()) == 1


@pytest.mark.parametrize(
    ("application", "problem"),
    [
        pytest.param(_application(policy="best"), "spec.policy must be one of lo-edf", id="policy"),
        pytest.param(
            _application() | {"profile": {"app-fast": POOR}},
            "variant app-slow must have 2 rows of 2 counts",
            id="profile",
        ),
        pytest.param(_application("other"), "has no variants", id="no variant"),
        pytest.param(_application("app-fast"), "must not be that of a model", id="name of a model"),
        pytest.param(
            _application() | {"examples": "/nowhere.npz"}, "cannot be read", id="examples"
        ),
    ],
)
def test_mistakes_name_the_application(application: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidCluster, match=rf"applications\[0\]: .*{problem}"):
        _plan(application=application)
