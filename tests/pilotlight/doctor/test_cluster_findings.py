"""What `pilotlight doctor` finds on clusters with one fault each."""

from collections.abc import Sequence
from typing import Any

import pytest

from pilotlight.doctor import Severity
from pilotlight.doctor.cluster_facts import ClusterFacts
from pilotlight.doctor.cluster_findings import DRIVER_LABEL, GPU, cluster_findings
from pilotlight.doctor.policy_probe import judge

NAMESPACE = "pilotlight"


def deployment(
    name: str, *, namespace: str = NAMESPACE, image: str = "x", available: int = 1, **labels: str
) -> dict[str, Any]:
    named = {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": named},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"image": image}]}}},
        "status": {"availableReplicas": available},
    }


def manager(version: str = "v0.20.0", **more: Any) -> dict[str, Any]:
    made = deployment("kserve-controller-manager", namespace="kserve", **more)
    made["metadata"]["labels"] = {"control-plane": "kserve-controller-manager"}
    made["spec"]["template"]["spec"]["containers"] = [
        {"image": f"docker.io/kserve/kserve-controller:{version}"}
    ]
    return made


ASKS = {"name": "PILOTLIGHT_CLUSTER_ISSUER", "value": "/issuer"}
OPEN = {"name": "PILOTLIGHT_AUTH", "value": "open"}


def ours(
    name: str = "pilotlight-gateway", environment: Sequence[object] = (ASKS,), **more: Any
) -> dict[str, Any]:
    made = deployment(name, **more)
    made["metadata"]["labels"] = {"app.kubernetes.io/part-of": "pilotlight"}
    made["spec"]["template"]["spec"]["containers"][0]["env"] = environment
    return made


def service(
    name: str,
    *,
    labels: dict[str, str] | None = None,
    mode: str,
    scaler: str = "external",
    **predictor: Any,
) -> dict[str, Any]:
    annotations = {
        "serving.kserve.io/deploymentMode": mode,
        "serving.kserve.io/autoscalerClass": scaler,
    }
    if not labels:
        annotations = {"serving.kserve.io/deploymentMode": mode, "pilotlight.io/pool": "default"}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": name,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels or {},
            "annotations": annotations,
        },
        "spec": {"predictor": predictor},
    }


def pool(name: str = "pool", *, mode: str = "Standard", **more: Any) -> dict[str, Any]:
    more.setdefault("containers", [{"image": "x"}])
    return service(name, labels={"pilotlight.io/pool": "default"}, mode=mode, **more)


def model(**model: Any) -> dict[str, Any]:
    given = {"modelFormat": {"name": "onnx"}, "storageUri": "s3://models/m", **model}
    return service("model", mode="ModelMesh", model=given)


def facts(**lists: Any) -> ClusterFacts:
    """A cluster without faults, but for these lists."""
    healthy: dict[str, Any] = {
        "crds": [{"metadata": {"name": "inferenceservices.serving.kserve.io"}}],
        "deployments": [manager(), ours()],
        "services": [pool(), model()],
        "nodes": [],
        "network_policies": [{"metadata": {"name": "registry"}}],
        "secrets": [{"metadata": {"name": f"pilotlight-{each}"}} for each in ("pods", "redis")],
        "webhooks": [],
        "admission_policies": [{"metadata": {"name": "pilotlight-parked-models"}}],
        "config_maps": [],
        "peer_authentications": [],
    }
    return ClusterFacts(NAMESPACE, (1, 34), {**healthy, **lists})


def complaints(found: ClusterFacts) -> list[str]:
    result = []
    for each in cluster_findings(found):
        if each.severity is not Severity.OK:
            assert each.remedy, each
            result.append(f"{each.severity} {each.subject}: {each.detail}")
    return result


def test_a_healthy_cluster_has_no_complaints() -> None:
    assert complaints(facts()) == []


def test_a_pool_that_is_a_deployment_needs_no_kserve() -> None:
    own_pool = deployment("pool")
    own_pool["metadata"]["labels"] = {"pilotlight.io/pool": "default"}
    found = complaints(facts(crds=[], deployments=[ours(), own_pool]))
    assert not any("KServe" in each for each in found)


def node(driver: str | None) -> dict[str, Any]:
    labels = {} if driver is None else {DRIVER_LABEL: driver}
    return {"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": {GPU: "1"}}}


def scaler(target: str, maker: str = "", **spec: Any) -> dict[str, Any]:
    owners = [{"kind": maker, "name": "theirs"}] if maker else []
    return {
        "metadata": {"name": "theirs", "namespace": NAMESPACE, "ownerReferences": owners},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": target}, **spec},
    }


DISK = {"name": "cache", "emptyDir": {"sizeLimit": "50Gi"}}
GPU_POOL = pool(containers=[{"resources": {"limits": {GPU: "1"}}}])
FEATURES = {
    "metadata": {"name": "config-features", "namespace": "knative-serving"},
    "data": {"kubernetes.podspec-fieldref": "enabled"},
}


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        pytest.param({"crds": []}, "problem KServe: is not installed", id="no-kserve"),
        pytest.param(
            {"deployments": [manager("v0.15.2"), ours()]},
            "problem KServe: version 0.15 does not know the mode Standard of pool pilotlight/pool",
            id="kserve-0.15-in-mode-standard",
        ),
        pytest.param(
            {"deployments": [manager("v0.21.0"), ours()]},
            "warning KServe: KServe 0.21 is not tested (0.16 to 0.20 are)",
            id="new-kserve",
        ),
        pytest.param(
            {"deployments": [manager(available=0), ours()]},
            "problem KServe: version 0.20, but its controller",
            id="kserve-is-down",
        ),
        pytest.param(
            {"deployments": [manager(), ours(), deployment("modelmesh-controller")]},
            "problem modelmesh-serving: is installed",
            id="modelmesh",
        ),
        pytest.param(
            {"deployments": [manager()]}, "problem Pilotlight: is not installed", id="not-installed"
        ),
        pytest.param(
            {"deployments": [manager(), ours(available=0)]},
            "problem pilotlight-gateway: 0 of 1 pods",
            id="gateway-is-down",
        ),
        pytest.param(
            {"deployments": [manager(), ours(environment=(ASKS, OPEN))]},
            "warning clients: need no key or token",
            id="open",
        ),
        pytest.param(
            {"deployments": [manager(), ours(environment=())]},
            "warning clients: need no key or token",
            id="nothing-is-asked",
        ),
        pytest.param(
            {"secrets": [{"metadata": {"name": "pilotlight-redis"}}]},
            "problem Secret pilotlight-pods: is missing",
            id="no-pod-secret",
        ),
        pytest.param(
            {"secrets": [{"metadata": {"name": "pilotlight-pods"}}]},
            "problem Secret pilotlight-redis: is missing",
            id="no-redis-passwords",
        ),
        pytest.param(
            {"network_policies": []}, "warning network policies: there are none", id="no-policies"
        ),
        pytest.param(
            {
                "webhooks": [
                    {
                        "metadata": {"name": "annotations.pilotlight.io"},
                        "webhooks": [{"clientConfig": {}}],
                    }
                ]
            },
            "problem webhook annotations.pilotlight.io: has no caBundle",
            id="no-ca-bundle",
        ),
        pytest.param(
            {
                "mutating_webhooks": [
                    {
                        "metadata": {"name": "defaults.pilotlight.io"},
                        "webhooks": [{"clientConfig": {}}],
                    }
                ]
            },
            "problem webhook defaults.pilotlight.io: has no caBundle",
            id="no-ca-bundle-of-the-other",
        ),
        pytest.param(
            {"admission_policies": [{"metadata": {"name": "of-others"}}]},
            "warning admission policies: are missing",
            id="no-admission-policies",
        ),
        pytest.param(
            {"autoscalers": [scaler("pool-predictor"), scaler("other-predictor")]},
            "warning pool default: HorizontalPodAutoscaler theirs in namespace pilotlight scales",
            id="foreign-autoscaler",
        ),
        pytest.param(
            {"scaled_objects": [scaler("pool-predictor")]},
            "warning pool default: ScaledObject theirs in namespace pilotlight scales",
            id="foreign-scaled-object",
        ),
        pytest.param(
            {
                "autoscalers": [scaler("pool-predictor")],
                "scaled_objects": [scaler("pool-predictor")],
            },
            "problem pool default: ScaledObject theirs and HorizontalPodAutoscaler theirs both",
            id="two-scalers",
        ),
        pytest.param(
            {
                "services": [pool(mode="Knative")],
                "config_maps": [FEATURES],
                "scaled_objects": [scaler("pool-predictor-00001-deployment")],
            },
            "problem pool default: Knative and ScaledObject theirs both",
            id="knative-and-another",
        ),
        pytest.param(
            {"services": [pool(volumes=[DISK]), model()]},
            "warning pool default: asks for no ephemeral-storage",
            id="no-ephemeral-storage",
        ),
        pytest.param(
            {"services": [pool(mode="ModelMesh"), model()]},
            "problem pool default: KServe runs it in mode 'ModelMesh'",
            id="pools-mode",
        ),
        pytest.param(
            {"services": [pool(scaler="hpa"), model()]},
            "warning pool default: InferenceService pilotlight/pool has autoscaler class 'hpa'",
            id="pools-scaler",
        ),
        pytest.param(
            {"services": [pool(), pool("other"), model()]},
            "problem pool default: is the name of several",
            id="two-of-a-name",
        ),
        pytest.param({"services": []}, "problem pools: there is none", id="no-pool"),
        pytest.param(
            {"services": [pool(), model(storageUri="nonsense")]},
            "problem model pilotlight/model: ",
            id="mistaken-model",
        ),
        pytest.param(
            {"services": [pool(mode="Knative")]},
            "problem pool default: is in Knative mode, and Knative",
            id="no-knative",
        ),
        pytest.param(
            {"services": [pool(mode="Knative", tolerations=[{}])], "config_maps": [FEATURES]},
            "problem pool default: needs Knative's feature kubernetes.podspec-tolerations",
            id="knative-feature",
        ),
        pytest.param(
            {"services": [GPU_POOL]}, "problem pool default: asks for nvidia.com/gpu", id="no-gpu"
        ),
        pytest.param(
            {"services": [GPU_POOL], "nodes": [node("570")]},
            "problem node n: has NVIDIA driver 570",
            id="old-driver",
        ),
        pytest.param(
            {"services": [GPU_POOL], "nodes": [node(None)]},
            "warning node n: has no label",
            id="no-feature-discovery",
        ),
        pytest.param(
            {"services": [pool(containers=[{"envFrom": [{"secretRef": {"name": "s"}}]}])]},
            "warning pool default: the Secret s with its storage credentials",
            id="no-credentials",
        ),
        pytest.param(
            {
                "peer_authentications": [
                    {
                        "metadata": {"name": "default", "namespace": NAMESPACE},
                        "spec": {"mtls": {"mode": "STRICT"}},
                    }
                ]
            },
            "warning Istio: PeerAuthentication pilotlight/default is STRICT",
            id="strict-mesh",
        ),
    ],
)
def test_each_fault_is_said_with_the_way_out(lists: dict[str, Any], expected: str) -> None:
    found = complaints(facts(**lists))
    assert any(each.startswith(expected) for each in found), found
    assert len(found) == 1, found


@pytest.mark.parametrize(
    ("reached", "severity", "detail"),
    [
        pytest.param(
            ["the gateway", "Redis", "a pod of a pool"],
            Severity.PROBLEM,
            "are not enforced: a pod of namespace default reached Redis and a pod of a pool",
            id="not-enforced",
        ),
        pytest.param(["Redis"], Severity.PROBLEM, "are not enforced", id="gateway-is-down"),
        pytest.param([], Severity.UNKNOWN, "reached not even the gateway", id="no-network"),
        pytest.param(["the gateway"], Severity.OK, "are enforced", id="enforced"),
    ],
)
def test_policies_are_judged_by_what_a_pod_reached(
    reached: list[str], severity: Severity, detail: str
) -> None:
    found = judge(reached)
    assert (found.severity, found.subject) == (severity, "network policies")
    assert detail in found.detail
    assert bool(found.remedy) == (severity is not Severity.OK)


def test_ambient_mode_is_sound_and_kserve_015_works_in_its_own_mode() -> None:
    strict = {
        "metadata": {"name": "d", "namespace": NAMESPACE},
        "spec": {"mtls": {"mode": "STRICT"}},
    }
    ambient = {"metadata": {"name": NAMESPACE, "labels": {"istio.io/dataplane-mode": "ambient"}}}
    assert complaints(facts(peer_authentications=[strict], namespaces=[ambient])) == []
    old = [manager("v0.15.2"), ours()]
    services = [pool(mode="RawDeployment"), model()]
    found = complaints(facts(deployments=old, services=services))
    assert found == ["warning KServe: KServe 0.15 is not tested (0.16 to 0.20 are)"]


def test_an_old_cluster_and_denied_lists_are_said() -> None:
    found = facts()
    found.version = (1, 28)
    del found.lists["nodes"]
    found.denied["nodes"] = "nodes is forbidden"
    assert complaints(found) == [
        "unknown nodes: nodes is forbidden",
        "problem Kubernetes: version 1.28; 1.30 or later is needed, for webhooks' match conditions",
    ]


TRIGGER = {"type": "external-push", "metadata": {"scalerAddress": "pilotlight-autoscaler:9003"}}
METRIC = {"type": "External", "external": {"metric": {"name": "pilotlight-wanted-pods"}}}


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ({}, "Pilotlight's autoscaler scales Deployment pool-predictor"),
        (
            {
                "scaled_objects": [scaler("pool-predictor", triggers=[TRIGGER])],
                "autoscalers": [scaler("pool-predictor", maker="ScaledObject")],
            },
            "ScaledObject theirs scales Deployment pool-predictor",
        ),
        (
            {"autoscalers": [scaler("pool-predictor", metrics=[METRIC])]},
            "HorizontalPodAutoscaler theirs scales Deployment pool-predictor",
        ),
        (
            {
                "services": [pool(mode="Knative")],
                "config_maps": [FEATURES],
                "autoscalers": [scaler("pool-predictor-00001-deployment", maker="PodAutoscaler")],
            },
            "Knative scales Deployment pool-predictor",
        ),
    ],
)
def test_the_scaler_of_each_pool_is_told(lists: dict[str, Any], expected: str) -> None:
    found = cluster_findings(facts(**lists))
    assert f"ok pool default: {expected}" in [
        f"{each.severity} {each.subject}: {each.detail}" for each in found
    ]
