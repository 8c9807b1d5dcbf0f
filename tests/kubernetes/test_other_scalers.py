"""A HorizontalPodAutoscaler scales a pool on Pilotlight's figures, to zero and back; drains."""

import contextlib
import json
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from controller.external_metrics import API_SERVICE, VERSION
from registry.domain.pool_demand import WANTED_PODS
from tests.kubernetes.kubectl import Kubectl, kustomize
from tests.kubernetes.models import Gateway, Tenant
from tests.kubernetes.places import IN_NAMESPACE, NAMESPACE, REPOSITORY
from tests.kubernetes.scaling import AUTOSCALER, OF_POOL, Autoscalers, Pool
from tests.kubernetes.test_autoscaler import LEFT_ALONE, _calls
from tests.servers import wait_until

pytestmark = pytest.mark.kubernetes

PATIENT = "280s"
COST = "controller.kubernetes.io/pod-deletion-cost"
Objects = dict[tuple[str, str], dict[str, Any]]


def _objects(folder: Path) -> Objects:
    return {(each["kind"], each["metadata"]["name"]): each for each in kustomize(folder)}


@pytest.fixture(scope="module")
def metrics(
    installed: Kubectl, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kubectl]:
    """The components `external-metrics` and `keda`, and an autoscaler that is quick to remove."""
    folder = tmp_path_factory.mktemp("overlay")
    here = os.path.relpath(REPOSITORY / "manifests", folder.resolve())
    content = {
        "resources": [f"{here}/overlays/minimal"],
        "components": [f"{here}/components/{each}" for each in ("external-metrics", "keda")],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    before = _objects(REPOSITORY / "manifests" / "overlays" / "minimal")
    changed = [each for key, each in _objects(folder).items() if before.get(key) != each]
    installed.apply(changed, "--force-conflicts")
    quick = ("PILOTLIGHT_POD_STABLE", "PILOTLIGHT_POD_IDLE")
    installed(*IN_NAMESPACE, "set", "env", AUTOSCALER, *(f"{each}=5" for each in quick))
    for name in (AUTOSCALER, "deployment/pilotlight-controller"):
        installed(*IN_NAMESPACE, "rollout", "status", name, "--timeout=280s")
    yield installed
    keys = [(each["kind"], each["metadata"]["name"]) for each in changed]
    installed.apply([before[key] for key in keys if key in before], "--force-conflicts")
    for key in keys:
        if key not in before:
            installed(*IN_NAMESPACE, "delete", *key)
    installed(*IN_NAMESPACE, "set", "env", AUTOSCALER, *(f"{each}-" for each in quick))
    installed(*IN_NAMESPACE, "rollout", "status", AUTOSCALER, "--timeout=280s")


def figure(kubectl: Kubectl, pool: str = "default") -> float:
    """As the API server relays it."""
    path = f"/apis/{VERSION}/namespaces/{NAMESPACE}/{WANTED_PODS}?labelSelector=pool%3D{pool}"
    [found] = json.loads(kubectl("get", "--raw", path))["items"]
    return float(found["value"].removesuffix("m")) / 1000


@contextlib.contextmanager
def hpa(kubectl: Kubectl, least: int, most: int, **down: Any) -> Iterator[None]:
    """An HPA of the pool on Pilotlight's figure; `down`: its rules for scaling down."""
    selector = {"matchLabels": {"pool": "default"}}
    metric = {
        "metric": {"name": WANTED_PODS, "selector": selector},
        "target": {"type": "AverageValue", "averageValue": "1"},
    }
    found = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "ours", "namespace": NAMESPACE},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": "pool-predictor",
            },
            "minReplicas": least,
            "maxReplicas": most,
            "metrics": [{"type": "External", "external": metric}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0} | down},
        },
    }
    kubectl.apply([found])
    try:
        yield
    finally:
        kubectl(*IN_NAMESPACE, "delete", "hpa", "ours")


def test_an_hpa_scales_a_pool_to_zero_and_back(
    metrics: Kubectl, pool: Pool, autoscalers: Autoscalers, gateway: Gateway, tenant: Tenant
) -> None:
    pool.delete_models()
    metrics.wait("condition=Available", f"apiservice/{API_SERVICE}")
    with hpa(metrics, 0, 2):
        wait_until(
            lambda: 1.0 in autoscalers.metrics(LEFT_ALONE, owner="rival").values(),
            what="the autoscaler only advises",
        )
        set_by_us = _calls(metrics, "PATCH", "deployments", "scale")
        tenant.declare("sleeper", queue_timeout=PATIENT, deadline=PATIENT)
        pool.wait_ready(0)
        assert figure(metrics) == 0
        assert gateway.predict(tenant, "sleeper").status_code == 200
        pool.wait_ready(0)
        assert _calls(metrics, "PATCH", "deployments", "scale") == set_by_us
    pool.wait_wanted(1)


def test_the_pod_that_goes_has_drained_and_the_lowest_cost(metrics: Kubectl, pool: Pool) -> None:
    pool.delete_models()
    pool.allow(2, 2)
    pool.wait_ready(2)
    with hpa(metrics, 1, 2, selectPolicy="Disabled"):
        wait_until(lambda: figure(metrics) == 1, what="one pod is advised")
        pods = metrics.get(*IN_NAMESPACE, "pods", "-l", OF_POOL)["items"]
        costs = {
            each["metadata"]["name"]: each["metadata"].get("annotations", {}).get(COST)
            for each in pods
        }
        leaving = [name for name, cost in costs.items() if cost == "-1"]
        assert len(leaving) == 1, costs
        assert pool.wanted() == 2
        policy = {"spec": {"behavior": {"scaleDown": {"selectPolicy": "Max"}}}}
        metrics(*IN_NAMESPACE, "patch", "hpa", "ours", "--type=merge", "-p", json.dumps(policy))
        pool.wait_ready(1)
        [left] = metrics.get(*IN_NAMESPACE, "pods", "-l", OF_POOL)["items"]
        assert left["metadata"]["name"] not in leaving
    pool.allow(1, 1)


def test_only_the_aggregation_layer_may_ask(metrics: Kubectl, gateway: Gateway) -> None:
    answer = metrics.answer(
        "get", "--raw", f"/apis/{VERSION}/namespaces/other/{WANTED_PODS}?labelSelector=pool%3Dgpu"
    )
    said = answer.output + answer.errors
    assert "pool must be one of: default" in said
    assert "; was 'gpu'" in said
    found = json.loads(metrics("get", "--raw", f"/apis/{VERSION}"))
    assert WANTED_PODS in [each["name"] for each in found["resources"]]
    pods = ("pods", "-l", "app.kubernetes.io/name=pilotlight-controller")
    address = metrics.get(*IN_NAMESPACE, *pods)["items"][0]["status"]["podIP"]
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    url = f"https://{address}:6443/apis/{VERSION}"
    with pytest.raises(httpx.TransportError):
        httpx.get(url, verify=context, trust_env=False, timeout=30)
