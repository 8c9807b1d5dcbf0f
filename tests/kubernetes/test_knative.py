"""A pool in Knative mode: KServe hands it to Knative with the pool's bounds; we leave it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.kubernetes.places import IN_NAMESPACE, NAMESPACE, REPOSITORY

if TYPE_CHECKING:
    from tests.kubernetes.kubectl import Kubectl
    from tests.kubernetes.scaling import Scaler

pytestmark = pytest.mark.kubernetes

POOL = "serverless"
MODE = "serving.kserve.io/deploymentMode"


def knative_pool() -> dict[str, Any]:
    """The pool of `manifests/base`, under Knative, with two pods at least and five at most."""
    text = (REPOSITORY / "manifests" / "base" / "pool.yaml").read_text()
    pool: dict[str, Any] = next(
        item for item in yaml.safe_load_all(text) if item["kind"] == "InferenceService"
    )
    pool["metadata"] |= {"name": POOL, "namespace": NAMESPACE}
    pool["metadata"] |= {"labels": {"pilotlight.io/pool": POOL}, "annotations": {MODE: "Knative"}}
    predictor = pool["spec"]["predictor"]
    predictor |= {"minReplicas": 2, "maxReplicas": 5}
    del predictor["deploymentStrategy"]  # refused in this mode
    return pool


@pytest.fixture
def service(installed: Kubectl) -> dict[str, Any]:
    """The Knative Service that KServe makes of the pool."""
    installed.apply([knative_pool()])
    installed.wait("create", *IN_NAMESPACE, f"ksvc/{POOL}-predictor")
    return installed.get(*IN_NAMESPACE, "ksvc", f"{POOL}-predictor")


def test_its_bounds_reach_the_knative_service(service: dict[str, Any]) -> None:
    template = service["spec"]["template"]
    annotations = template["metadata"]["annotations"]
    assert annotations["autoscaling.knative.dev/min-scale"] == "2"
    assert annotations["autoscaling.knative.dev/max-scale"] == "5"
    assert template["metadata"]["labels"]["pilotlight.io/pool"] == POOL
    container = template["spec"]["containers"][0]
    assert container["command"] == ["python", "-m", "runtime"]


@pytest.mark.usefixtures("service")
def test_our_actuator_leaves_it_to_knative(scale: Scaler) -> None:
    done = scale(3, pool=POOL)
    assert done.returncode != 0
    assert "'Knative'" in done.stdout + done.stderr
