from dataclasses import replace
from typing import Any

import pytest

from controller.pool_size import (
    CompetingScaler,
    PoolObject,
    ScaledElsewhere,
    ScaleTo,
    bounds_of,
    deletion_costs,
    find_owner,
    pods_to_drain,
    read_deployment_pool,
    read_pool,
    read_scalers,
    rivals,
    within_bounds,
)
from registry.domain.pod import PodInfo
from registry.domain.pod_state import PodState

POOL = PoolObject("pilotlight", "pool", "pool-predictor", "Standard", "external", 1, 4)


@pytest.mark.parametrize(
    ("wanted", "pods"),
    [
        pytest.param(2, 2, id="within"),
        pytest.param(0, 1, id="least"),
        pytest.param(9, 4, id="most"),
    ],
)
def test_stays_within_bounds_with_a_note(wanted: int, pods: int) -> None:
    decision = within_bounds(POOL, wanted)
    assert isinstance(decision, ScaleTo)
    assert decision.pods == pods
    assert bool(decision.note) == (wanted != pods)


def test_zero_and_unbounded_pools() -> None:
    pool = replace(POOL, min_pods=0, max_pods=None)
    assert within_bounds(pool, 0) == ScaleTo(0, "")
    assert within_bounds(pool, 500) == ScaleTo(500, "")


@pytest.mark.parametrize(
    ("pool", "scalers", "detail"),
    [
        pytest.param(replace(POOL, mode="Knative"), [], "mode 'Knative'", id="knative"),
        pytest.param(replace(POOL, autoscaler_class="hpa"), [], "class 'hpa'", id="hpa-class"),
        pytest.param(replace(POOL, autoscaler_class="none"), [], "class 'none'", id="none-class"),
        pytest.param(
            POOL,
            [CompetingScaler("HorizontalPodAutoscaler", "mine", "pool-predictor")],
            "HorizontalPodAutoscaler mine",
            id="foreign-hpa",
        ),
    ],
)
def test_finds_other_scalers(pool: PoolObject, scalers: list[CompetingScaler], detail: str) -> None:
    decision = find_owner(pool, scalers)
    assert isinstance(decision, ScaledElsewhere)
    assert detail in decision.reason


def test_ignores_scalers_of_other_deployments() -> None:
    assert find_owner(POOL, [CompetingScaler("ScaledObject", "x", "web")]) is None
    assert find_owner(POOL, []) is None
    assert find_owner(replace(POOL, mode="RawDeployment"), []) is None  # KServe 0.15


def test_reads_a_pool_without_kserve() -> None:
    bounds = {"pilotlight.io/min-replicas": "0", "pilotlight.io/max-replicas": "4"}
    metadata = {"namespace": "pilotlight", "name": "pool", "annotations": bounds}
    pool = read_deployment_pool({"metadata": metadata, "spec": {"replicas": 1}})
    assert (pool.deployment, pool.min_pods, pool.max_pods) == ("pool", 0, 4)
    assert find_owner(pool, []) is None
    assert find_owner(pool, [CompetingScaler("ScaledObject", "x", "pool")]) is not None


def test_reads_a_pool() -> None:
    document: dict[str, Any] = {
        "metadata": {
            "namespace": "pilotlight",
            "name": "pool",
            "annotations": {"serving.kserve.io/autoscalerClass": "external"},
        },
        "spec": {"predictor": {"minReplicas": 1, "maxReplicas": 4}},
        "status": {"deploymentMode": "Standard"},
    }
    assert read_pool(document) == POOL


def test_idle_and_empty_pods_have_the_lowest_cost() -> None:
    pods = {name: PodState(PodInfo(name, "h:1", "n", slots=4)) for name in ("busy", "full", "bare")}
    pods["busy"].set_counts(1, 0)
    pods["full"].set_used_bytes({"device": 80 << 30})
    costs = deletion_costs(pods)
    assert sorted(costs, key=lambda name: costs[name]) == ["bare", "full", "busy"]
    assert all(abs(cost) < 1 << 31 for cost in costs.values())


def test_leaving_pods_have_the_lowest_cost_of_all() -> None:
    pods = {name: PodState(PodInfo(name, "h:1", "n", slots=4)) for name in ("named", "bare")}
    pods["named"].set_counts(1, 0)
    costs = deletion_costs(pods, ["named", "gone"])
    assert costs["named"] < costs["bare"]
    assert "gone" not in costs


@pytest.mark.parametrize(
    ("leaving", "standing", "pods", "drained"),
    [
        pytest.param(["b"], ["a", "b"], 1, ["b"], id="one-of-two"),
        pytest.param(["b", "a"], ["a", "b"], 0, ["b", "a"], id="to-zero"),
        pytest.param(["b"], ["a", "b"], 2, [], id="no-longer-too-many"),
        pytest.param(["b", "c"], ["a", "b", "c"], 2, ["b"], id="as-many-as-needed-in-order"),
        pytest.param(["b"], ["a"], 0, [], id="gone-already"),
        pytest.param([], ["a", "b"], 1, [], id="nobody-was-named"),
    ],
)
def test_drains_surplus_leaving_pods_only(
    leaving: list[str], standing: list[str], pods: int, drained: list[str]
) -> None:
    assert pods_to_drain(leaving, standing, pods=pods) == drained


def _scaler(name: str, **spec: object) -> dict[str, Any]:
    target = {"name": "pool-predictor"}
    return {"metadata": {"name": name}, "spec": {"scaleTargetRef": target, **spec}}


def test_the_bounds_are_those_of_the_scaler_that_owns_the_pool() -> None:
    scaled = _scaler("so", maxReplicaCount=5)
    made = _scaler("keda-hpa-so", minReplicas=1, maxReplicas=5)
    made["metadata"]["ownerReferences"] = [{"kind": "ScaledObject", "name": "so"}]
    found = read_scalers([made], [scaled])
    assert [each.name for each in rivals(POOL, found)] == ["so"]
    bounds = bounds_of(replace(POOL, min_pods=1, max_pods=8), found)
    assert (bounds.min_pods, bounds.max_pods) == (0, 5)
    alone = bounds_of(POOL, read_scalers([_scaler("hpa", maxReplicas=4)], []))
    assert (alone.min_pods, alone.max_pods) == (1, 4)
    assert bounds_of(POOL, []) == POOL


def test_scalers_of_other_kinds_are_none() -> None:
    other = _scaler("job")
    other["spec"]["scaleTargetRef"]["kind"] = "StatefulSet"
    assert read_scalers([other], [other]) == []
