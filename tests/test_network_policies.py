"""Who may connect to what on a cluster, by the manifests' network policies and labels."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

MANIFESTS = Path(__file__).parents[1] / "manifests"
NAME = "app.kubernetes.io/name"
POD = {"pilotlight.io/pool": "default", "serving.kserve.io/inferenceservice": "pool"}
QUEUE_PROXY = {**POD, "serving.knative.dev/revision": "pool-predictor-00001"}
REDIS, GATEWAY, AUTOSCALER, CONTROLLER, WORKFLOWS = (
    {NAME: f"pilotlight-{each}"}
    for each in ("redis", "gateway", "autoscaler", "controller", "workflows")
)
HOME, TENANT = "pilotlight", "tenant"
PORTS = {"redis": 6379, "http": 8080, "health": 8090, "webhooks": 9443}


def documents(*paths: str) -> Iterator[dict[str, Any]]:
    for path in paths:
        yield from yaml.safe_load_all((MANIFESTS / path).read_text())


def policies(*, knative: bool = False) -> list[dict[str, Any]]:
    """Those that the base applies, those of workflows, and those of Knative's component."""
    listed = yaml.safe_load((MANIFESTS / "base/kustomization.yaml").read_text())["resources"]
    paths = [f"base/{each}" for each in listed if each.endswith(".yaml")]
    paths.append("components/workflows/network-policies.yaml")
    if knative:
        paths.append("components/knative/network-policy.yaml")
    return [each["spec"] for each in documents(*paths) if each["kind"] == "NetworkPolicy"]


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return all(
        labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()
    ) and all(
        labels.get(each["key"]) in each["values"]
        if each["operator"] == "In"
        else each["key"] in labels
        for each in selector.get("matchExpressions", [])
    )


def is_source(peer: Mapping[str, Any], labels: Mapping[str, str], namespace: str) -> bool:
    if "namespaceSelector" in peer:
        of_namespace = {"kubernetes.io/metadata.name": namespace}
        return selects(peer["namespaceSelector"], of_namespace) and selects(
            peer.get("podSelector", {}), labels
        )
    return namespace == HOME and selects(peer["podSelector"], labels)


def is_allowed(
    target: Mapping[str, str],
    port: int,
    labels: Mapping[str, str],
    namespace: str,
    *,
    knative: bool = False,
) -> bool:
    """By Kubernetes' rules: once a policy selects a pod, what no policy allows is refused."""
    chosen = [each for each in policies(knative=knative) if selects(each["podSelector"], target)]
    return not chosen or any(
        ("from" not in rule or any(is_source(peer, labels, namespace) for peer in rule["from"]))
        and (
            "ports" not in rule or port in {PORTS.get(p["port"], p["port"]) for p in rule["ports"]}
        )
        for each in chosen
        for rule in each.get("ingress", [])
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "port"),
    [
        (POD, 8080),
        (POD, 8081),
        (QUEUE_PROXY, 8012),
        (QUEUE_PROXY, 9090),
        (REDIS, 6379),
        (AUTOSCALER, 8080),
        (CONTROLLER, 8080),
        (WORKFLOWS, 8080),
    ],
)
def test_a_tenants_pod_reaches_nothing_but_the_gateway(target: dict[str, str], port: int) -> None:
    for labels in ({}, POD, QUEUE_PROXY, GATEWAY, CONTROLLER, WORKFLOWS):  # it may have any labels
        assert not is_allowed(target, port, labels, TENANT, knative=True)
        assert is_allowed(GATEWAY, 8080, labels, TENANT, knative=True)


@pytest.mark.parametrize(
    ("target", "port", "source"),
    [
        (POD, 8080, GATEWAY),
        (POD, 8080, POD),
        (POD, 8080, AUTOSCALER),
        (POD, 8081, GATEWAY),
        (REDIS, 6379, GATEWAY),
        (REDIS, 6379, POD),
        (REDIS, 6379, CONTROLLER),
        (REDIS, 6379, AUTOSCALER),
        (QUEUE_PROXY, 8012, GATEWAY),
        (QUEUE_PROXY, 8012, QUEUE_PROXY),
        (QUEUE_PROXY, 8012, AUTOSCALER),
        (WORKFLOWS, 8080, GATEWAY),
        (REDIS, 6379, WORKFLOWS),
        (POD, 8080, WORKFLOWS),
        (GATEWAY, 8080, WORKFLOWS),
    ],
)
def test_the_platforms_own_connections_are_allowed(
    target: dict[str, str], port: int, source: dict[str, str]
) -> None:
    assert is_allowed(target, port, source, HOME, knative=True)


@pytest.mark.parametrize("port", [8012, 8013, 8022, 8112, 9090, 9091])
def test_knative_reaches_queue_proxies(port: int) -> None:
    assert is_allowed(QUEUE_PROXY, port, {"app": "activator"}, "knative-serving", knative=True)
    assert not is_allowed(POD, port, {"app": "activator"}, "knative-serving", knative=True)


@pytest.mark.parametrize(
    "labels", [POD, QUEUE_PROXY, REDIS, GATEWAY, AUTOSCALER, CONTROLLER, WORKFLOWS]
)
def test_each_of_our_pods_is_closed_but_for_what_is_allowed(labels: dict[str, str]) -> None:
    assert not is_allowed(labels, 1234, GATEWAY, HOME)


def test_pods_of_others_in_the_namespace_are_left_alone() -> None:
    """A release in KServe's namespace must not cut its webhooks off."""
    kserve = {"control-plane": "kserve-controller-manager"}
    assert not any(selects(each["podSelector"], kserve) for each in policies(knative=True))


def test_prometheus_reads_the_gateways_metrics_and_no_client_does() -> None:
    assert is_allowed(GATEWAY, 8090, {}, "monitoring")
    assert not is_allowed(GATEWAY, 8090, {}, TENANT)


def test_the_api_server_reaches_the_webhooks() -> None:
    assert is_allowed(CONTROLLER, 9443, {}, "")


def test_kserve_and_knative_publish_no_address_of_the_pool() -> None:
    [pool] = [
        each for each in documents("base/pool/pool.yaml") if each["kind"] == "InferenceService"
    ]
    assert pool["metadata"]["labels"]["networking.kserve.io/visibility"] == "cluster-local"
    [component] = documents("components/knative/kustomization.yaml")
    patch = component["patches"][-1]
    added = {each["path"]: each.get("value") for each in yaml.safe_load(patch["patch"])}
    assert added["/metadata/labels/networking.knative.dev~1visibility"] == "cluster-local"
