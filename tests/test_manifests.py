"""The manifests as kustomize renders them: images, budgets, limits, pools, what Knative accepts."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from tests.rendered import GIB, MANIFESTS, OBJECTS, kustomized, quantity

NOWHERE = "registry.invalid/pilotlight"
"""The registry in the manifests: a name that never resolves (RFC 6761), so that no image of a
stranger is pulled in place of a missing one."""

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")


def containers(value: object) -> Iterator[dict[str, Any]]:
    """All containers anywhere in an object."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("containers", "initContainers"):
                yield from inner
            else:
                yield from containers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from containers(inner)


def predictor(objects: OBJECTS, name: str = "pool") -> dict[str, Any]:
    return dict(objects["InferenceService", name]["spec"]["predictor"])


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"]}


@pytest.mark.parametrize(
    "components", [("gpu-mps",), ("gpu", "one-model", "node-cache", "workflows")]
)
def test_an_overlays_images_are_those_of_every_container(components: tuple[str, ...]) -> None:
    names = ("platform", "runtime", "runtime-cuda")
    images = [
        {"name": f"{NOWHERE}/{each}", "newName": f"registry.example.com/x/{each}", "newTag": "9"}
        for each in names
    ]
    allowed = {f"registry.example.com/x/{each}:9" for each in names}
    objects = kustomized(*components, images=images)
    found = {each["image"] for item in objects.values() for each in containers(item)}
    assert found - allowed == {"docker.io/library/redis:7.4.7-alpine"}


EVERYTHING = (
    "gpu", "one-model", "workflows", "grpc", "tls", "workflows-tls", "redis-tls", "monitoring",
    "api-keys", "tokens", "ingress", "httproute", "gateway-autoscaling",
)  # fmt: skip


@pytest.mark.parametrize("components", [EVERYTHING, ("engine-mlserver",), ("engine-triton",)])
def test_no_image_is_left_to_the_engines_default_registry(components: tuple[str, ...]) -> None:
    objects = kustomized(*components, pools=["gpu"])
    for image in {each["image"] for item in objects.values() for each in containers(item)}:
        host, _, path = image.partition("/")
        assert "." in host, image
        assert path, image


def test_the_documented_overlay_names_every_image_anew(tmp_path: Path) -> None:
    page = (MANIFESTS.parent / "docs" / "install.md").read_text()
    [text] = re.findall(r"kustomization\.yaml <<'EOF'\n(.*?)\n    EOF", page, re.DOTALL)
    overlay = yaml.safe_load(dedent(text).replace("REGISTRY", "registry.example.com/ml"))
    objects = kustomized(
        "pools", "one-model", "node-cache", pools=["gpu"], images=overlay["images"]
    )
    found = {each["image"] for item in objects.values() for each in containers(item)}
    ours = {each for each in found if each.startswith("registry.example.com/ml/")}
    assert found - ours == {"docker.io/library/redis:7.4.7-alpine"}
    assert {each.rpartition("/")[2] for each in ours} == {
        f"{name}:0.1.0" for name in ("platform", "runtime", "runtime-cuda")
    }


@pytest.mark.parametrize("components", [EVERYTHING, ("engine-mlserver",), ("engine-triton",)])
def test_a_restricted_namespace_accepts_every_pod(components: tuple[str, ...]) -> None:
    """Pod Security Standards, `restricted`: what must be set in the pod or in each container."""
    objects = kustomized(*components, pools=["gpu"])
    checked = 0
    for item in objects.values():
        spec = item.get("spec", {})
        pod = spec.get("predictor") or spec.get("template", {}).get("spec") or spec
        for each in containers(pod):
            context = {**pod.get("securityContext", {}), **each["securityContext"]}
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}, each["name"]
            assert context["runAsNonRoot"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            checked += 1
        assert not any("hostPath" in each for each in pod.get("volumes", []))
    assert checked >= 6


def test_images_may_be_named_by_digest() -> None:
    digest = "sha256:" + "0" * 64
    objects = kustomized(images=[{"name": f"{NOWHERE}/platform", "digest": digest}])
    [gateway] = containers(objects["Deployment", "pilotlight-gateway"])
    assert gateway["image"] == f"{NOWHERE}/platform@{digest}"


def test_pull_secrets_are_those_of_all_pods() -> None:
    objects = kustomized("workflows", "pull-secret")
    pods = [
        each["spec"]["template"]["spec"]
        for (kind, _), each in objects.items()
        if kind == "Deployment"
    ]
    for pod in (*pods, predictor(objects)):
        assert pod["imagePullSecrets"] == [{"name": "pilotlight-registry-credentials"}]


@pytest.mark.parametrize("components", [(), ("gpu",), ("one-model",)])
def test_the_disk_budget_fits_the_volume(components: tuple[str, ...]) -> None:
    objects = kustomized(*components)
    pods = [predictor(objects)]
    if "one-model" in components:
        pods.append(objects["ClusterServingRuntime", "pilotlight"]["spec"])
    for pod in pods:
        [cache] = [each["emptyDir"] for each in pod["volumes"] if each["name"] == "cache"]
        budget = int(environment(pod["containers"][0])["PILOTLIGHT_DISK_BYTES"])
        assert 0 < budget <= 0.85 * quantity(cache["sizeLimit"])
        requests = pod["containers"][0]["resources"]["requests"]
        assert quantity(requests["ephemeral-storage"]) == quantity(cache["sizeLimit"])


def test_the_nodes_cache_belongs_to_the_pods_user() -> None:
    pod = predictor(kustomized("one-model", "node-cache"))
    [cache] = [each for each in pod["volumes"] if each["name"] == "cache"]
    assert cache["hostPath"]["type"] == "DirectoryOrCreate"
    [first] = pod["initContainers"]
    user = pod["securityContext"]["runAsUser"]
    assert first["command"] == ["chown", f"{user}:{user}", first["volumeMounts"][0]["mountPath"]]
    assert first["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    assert environment(pod["containers"][0])["PILOTLIGHT_DISK_BYTES"] == "0"  # of the free space


@pytest.mark.parametrize(
    "components",
    [
        pytest.param(("node-memory",), id="alone"),
        pytest.param(("node-memory", "node-cache"), id="before the cache"),
        pytest.param(("node-cache", "node-memory"), id="after the cache"),
        pytest.param(("engine-triton", "node-memory"), id="beside a model server"),
    ],
)
def test_pods_of_a_node_and_pool_share_one_folder(components: tuple[str, ...]) -> None:
    pod = predictor(kustomized(*components))
    [volume] = [each for each in pod["volumes"] if each["name"] == "node-memory"]
    assert volume["hostPath"] == {"path": "/dev/shm/pilotlight", "type": "DirectoryOrCreate"}
    container = pod["containers"][0]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "node-memory"]
    assert Path(environment(container)["PILOTLIGHT_HOST_DIR"]).parent == Path(mount["mountPath"])
    # Of its own namespace and pool, by what the pod's object says: its environment may be changed.
    assert mount["subPathExpr"] == "$(NODE_MEMORY_NAMESPACE).$(NODE_MEMORY_POOL)"
    others = [each for each in pod["containers"][1:] for each in each["volumeMounts"]]
    assert "node-memory" not in {each["name"] for each in others}
    inits = {each["name"]: each for each in pod["initContainers"]}
    assert len(inits) == len(components), "none replaces another's"
    owner = inits["own-node-memory"]
    assert owner["volumeMounts"] == [mount]
    for each in (container, owner):
        fields = {
            variable["name"]: variable["valueFrom"]["fieldRef"]["fieldPath"]
            for variable in each["env"]
            if variable["name"].startswith("NODE_MEMORY_")
        }
        assert fields == {
            "NODE_MEMORY_NAMESPACE": "metadata.namespace",
            "NODE_MEMORY_POOL": "metadata.labels['pilotlight.io/pool']",
        }


def test_only_one_capability_gives_the_folder_to_the_pods_user() -> None:
    objects = kustomized("node-memory")
    pod = predictor(objects)
    [owner] = pod["initContainers"]
    user = pod["securityContext"]["runAsUser"]
    assert owner["command"] == ["chown", f"{user}:{user}", owner["volumeMounts"][0]["mountPath"]]
    assert owner["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    assert owner["securityContext"]["allowPrivilegeEscalation"] is False
    assert owner["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"] is True
    namespace = objects["Namespace", "pilotlight"]["metadata"]["labels"]
    assert namespace["pod-security.kubernetes.io/enforce"] == "privileged"
    kept = kustomized()["Namespace", "pilotlight"]["metadata"]["labels"]
    assert kept["pod-security.kubernetes.io/enforce"] != "privileged"


def test_each_pool_has_a_folder_of_its_own() -> None:
    objects = kustomized("pools", "node-memory", pools=["gpu"])
    labels = set()
    for name in ("pool", "pool-gpu"):
        labels.add(objects["InferenceService", name]["metadata"]["labels"]["pilotlight.io/pool"])
        assert predictor(objects, name)["initContainers"][0]["name"] == "own-node-memory"
    assert labels == {"default", "gpu"}


def test_every_container_of_kserves_has_a_cpu_limit() -> None:
    """KServe's defaulter would set one CPU."""
    objects = kustomized("one-model", "node-cache", "node-memory")
    pods = [predictor(objects), objects["ClusterServingRuntime", "pilotlight"]["spec"]]
    for pod in pods:
        for each in containers(pod):
            assert "cpu" in each["resources"]["limits"], each["name"]


@pytest.mark.parametrize("component", ["gpu", "gpu-mps"])
def test_a_gpus_pod_takes_its_budget_node_and_driver(component: str) -> None:
    pod = predictor(kustomized(component))
    [container] = pod["containers"]
    assert container["image"].startswith(f"{NOWHERE}/runtime-cuda:")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "nodeSelector" in pod or "affinity" in pod
    assert environment(container)["PILOTLIGHT_DEVICE"] == "cuda"
    if component == "gpu":
        assert environment(container)["PILOTLIGHT_MEMORY_BYTES"] == "0"
        [term] = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        floors = {each["key"]: each["values"] for each in term["matchExpressions"]}
        assert floors["nvidia.com/cuda.driver-version.major"] == ["579"]


def test_a_gpus_pod_keeps_a_model_of_its_size_on_disk_and_smaller_ones_in_memory() -> None:
    pod = predictor(kustomized("gpu"))
    [container] = pod["containers"]
    given, limits = environment(container), container["resources"]["limits"]
    volumes = {each["name"]: each["emptyDir"] for each in pod["volumes"] if "emptyDir" in each}
    assert int(given["PILOTLIGHT_DISK_BYTES"]) >= 80 * GIB
    assert quantity(volumes["shared-memory"]["sizeLimit"]) >= int(given["PILOTLIGHT_HOST_BYTES"])
    beside = quantity(limits["memory"]) - int(given["PILOTLIGHT_HOST_BYTES"])
    assert beside >= 8 * GIB  # /dev/shm counts towards the limit


def test_the_nodes_cache_asks_for_no_storage_of_the_pods() -> None:
    for components in (["node-cache"], ["gpu", "node-cache"]):
        requests = predictor(kustomized(*components))["containers"][0]["resources"]["requests"]
        assert "ephemeral-storage" not in requests


KNATIVE_REFUSES = {
    "topologySpreadConstraints", "affinity", "nodeSelector", "tolerations", "securityContext",
    "initContainers", "schedulerName", "runtimeClassName", "terminationGracePeriodSeconds",
    "deploymentStrategy", "hostIPC", "shareProcessNamespace",
}  # fmt: skip
"""Fields of a pod behind Knative's feature flags, or not in its API."""


@pytest.mark.parametrize("overlay", ["minimal", "production"])
def test_knative_accepts_the_pool(overlay: str) -> None:
    objects = kustomized("knative", overlay=overlay)
    used = {name for name, value in predictor(objects).items() if value}  # KServe omits empty ones
    assert not used & KNATIVE_REFUSES
    policy = objects["NetworkPolicy", "queue-proxies"]["spec"]
    ports = {each["port"] for rule in policy["ingress"] for each in rule["ports"]}
    assert {8012, 8022, 9090} <= ports


def test_alerts_fire_where_a_metric_is_missing() -> None:
    rules = kustomized("monitoring", "api-keys")["PrometheusRule", "pilotlight"]["spec"]["groups"][
        0
    ]["rules"]
    for rule in rules:
        if match := re.match(r"sum\((\w+)\) == 0", rule["expr"]):
            assert f"or absent({match[1]})" in rule["expr"], rule["alert"]
    assert any("absent(pilotlight_gateway_registry_age_seconds)" in r["expr"] for r in rules)


def test_metrics_of_gateways_are_read_where_no_key_is_needed() -> None:
    objects = kustomized("monitoring")
    [endpoint] = objects["PodMonitor", "pilotlight-gateway"]["spec"]["podMetricsEndpoints"]
    [gateway] = containers(objects["Deployment", "pilotlight-gateway"])
    ports = {each["name"]: each["containerPort"] for each in gateway["ports"]}
    assert ports[endpoint["port"]] == int(environment(gateway)["PILOTLIGHT_HEALTH_PORT"])
    values = objects["PodMonitor", "pilotlight"]["spec"]["selector"]["matchExpressions"][0][
        "values"
    ]
    assert "pilotlight-gateway" not in values


def test_a_second_pool_has_pods_and_an_autoscaler_of_its_own() -> None:
    objects = kustomized("pools", pools=["gpu"])
    pods = {name: predictor(objects, name) for kind, name in objects if kind == "InferenceService"}
    assert {
        name: environment(pod["containers"][0])["PILOTLIGHT_POOL"] for name, pod in pods.items()
    } == {"pool": "default", "pool-gpu": "gpu"}
    labels = {
        objects["InferenceService", name]["metadata"]["labels"]["pilotlight.io/pool"]
        for name in pods
    }
    assert labels == {"default", "gpu"}
    assert {pod["serviceAccountName"] for pod in pods.values()} == {"pilotlight-runtime"}
    selectors = []
    for name, pool in (("pilotlight-autoscaler", "default"), ("pilotlight-autoscaler-gpu", "gpu")):
        deployment = objects["Deployment", name]["spec"]
        [container] = containers(deployment)
        assert environment(container)["PILOTLIGHT_POOL"] == pool
        selectors.append(deployment["selector"]["matchLabels"])
        assert deployment["template"]["metadata"]["labels"] == selectors[-1]
    assert selectors[0] != selectors[1]
    [gateway] = containers(objects["Deployment", "pilotlight-gateway"])
    assert environment(gateway)["PILOTLIGHT_POOL"] == "default,gpu"


@pytest.mark.parametrize("overlay", ["minimal", "production"])
def test_a_gateway_leaves_only_once_another_is_ready(overlay: str) -> None:
    gateway = kustomized(overlay=overlay)["Deployment", "pilotlight-gateway"]["spec"]
    assert gateway["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    pod = gateway["template"]["spec"]
    given = environment(pod["containers"][0])
    ends_s = float(given["PILOTLIGHT_SHUTDOWN_DELAY"]) + float(given["PILOTLIGHT_DRAIN_TIMEOUT"])
    assert ends_s < pod["terminationGracePeriodSeconds"]


def test_a_scaled_gateway_has_no_number_of_its_own() -> None:
    objects = kustomized("gateway-autoscaling", overlay="production")
    assert "replicas" not in objects["Deployment", "pilotlight-gateway"]["spec"]
    scaler = objects["HorizontalPodAutoscaler", "pilotlight-gateway"]["spec"]
    budget = objects["PodDisruptionBudget", "pilotlight-gateway"]["spec"]
    assert budget.get("minAvailable", 0) < scaler["minReplicas"] or "maxUnavailable" in budget
    assert scaler["metrics"][0]["pods"]["metric"]["name"] == "pilotlight_gateway_requests_in_flight"
