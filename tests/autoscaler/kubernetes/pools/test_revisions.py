"""Pods replaced by Knative, from the traffic in the InferenceService's status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autoscaler.kubernetes.cluster.pods import read_pod
from autoscaler.kubernetes.pools.revisions import replaced_pods
from registry.domain.model import ModelName

if TYPE_CHECKING:
    from autoscaler.kubernetes.cluster.pods import PodObject

POOL = ModelName("pilotlight", "pool")


def pod(generation: int, *, service: str = POOL.name, name: str = "") -> PodObject:
    labels = {
        "pilotlight.io/pool": "default",
        "serving.kserve.io/inferenceservice": service,
        "serving.knative.dev/revision": f"{service}-predictor-{generation:05}",
        "serving.knative.dev/configurationGeneration": str(generation),
    }
    name = name or f"{service}-{generation}"
    metadata = {"namespace": POOL.namespace, "name": name, "uid": name}
    return read_pod({"metadata": {**metadata, "labels": labels}})


def status(**percent: int) -> dict[str, Any]:
    traffic = [
        {"revisionName": f"pool-predictor-{int(key[1:]):05}", "percent": share}
        for key, share in percent.items()
    ]
    return {"components": {"predictor": {"traffic": traffic}}}


@pytest.mark.parametrize(
    ("status_of_pool", "expected"),
    [
        pytest.param({}, set(), id="no-status-yet"),
        pytest.param(status(r1=100), set(), id="no-traffic-to-the-new-one-yet"),
        pytest.param(status(r2=100), {"pool-1"}, id="routed-to-the-second"),
        pytest.param(status(r3=100), {"pool-1", "pool-2"}, id="routed-to-the-third"),
        pytest.param(status(r1=90, r3=10), set(), id="canary"),
        pytest.param(status(r1=0, r3=100), {"pool-1", "pool-2"}, id="zero-percent-to-the-first"),
        pytest.param(status(r4=100), set(), id="routed-to-one-without-pods"),
    ],
)
def test_pods_older_than_all_routed_revisions_are_replaced(
    status_of_pool: dict[str, Any], expected: set[str]
) -> None:
    found = replaced_pods([pod(1), pod(2), pod(3)], {POOL: status_of_pool})
    assert {each.name for each in found} == expected


def test_revisions_are_compared_within_a_service() -> None:
    other = pod(1, service="other")
    assert replaced_pods([pod(1), pod(2), other], {POOL: status(r2=100)}) == {pod(1)}


def test_pods_of_other_modes_are_never_replaced() -> None:
    metadata = {"namespace": POOL.namespace, "name": "plain", "uid": "plain", "labels": {}}
    assert (
        replaced_pods([read_pod({"metadata": metadata}), pod(2)], {POOL: status(r2=100)}) == set()
    )
