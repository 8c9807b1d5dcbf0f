"""The Helm chart renders the objects that kustomize renders, and what its values change."""

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.places import program
from tests.rendered import GIB, MANIFESTS, helm_chart, load_all, quantity, run_kubectl

OBJECTS = dict[tuple[str, str, str], dict[str, Any]]
POOL = {"name": "default", "minReplicas": 1, "maxReplicas": 8}
NOWHERE = "registry.invalid/pilotlight"
"""The registry in the manifests, from which nothing can be pulled."""
HELMS_OWN = ("app.kubernetes.io/instance", "app.kubernetes.io/managed-by",
             "app.kubernetes.io/version", "helm.sh/chart")  # fmt: skip
"""Labels of the chart's objects."""


def helm() -> Path:
    try:
        return program("helm")
    except FileNotFoundError as error:
        pytest.skip(str(error))


def by_name(text: str) -> OBJECTS:
    found = load_all(text)
    for each in found:
        if each["kind"].startswith("ValidatingAdmissionPolicy"):
            # kustomize does not know the kinds as the cluster's; the API server drops it
            each["metadata"].pop("namespace", None)
    result = {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each
        for each in found
    }
    assert len(result) == len(found), "an object is rendered twice"
    return result


def template(
    chart: Path, folder: Path, *, namespace: str, values: dict[str, Any]
) -> subprocess.CompletedProcess[str]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    command = [str(helm()), "template", "pilotlight", str(chart), "--namespace", namespace]
    options = ["--values", str(file), "--kube-version", "1.34.4"]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


def try_render(
    folder: Path, *, namespace: str, values: dict[str, Any]
) -> subprocess.CompletedProcess[str]:
    return template(helm_chart(folder / "chart"), folder, namespace=namespace, values=values)


def render(tmp_path: Path, *, namespace: str = "pilotlight", **values: Any) -> OBJECTS:
    values = {"images": {"registry": NOWHERE}, **values}
    made = try_render(tmp_path, namespace=namespace, values=values)
    assert made.returncode == 0, made.stderr
    return by_name(made.stdout)


def refusal(tmp_path: Path, **values: Any) -> str:
    made = try_render(tmp_path, namespace="pilotlight", values=values)
    assert made.returncode != 0, "the values were taken"
    return made.stderr


def kustomized(folder: str) -> OBJECTS:
    return by_name(run_kubectl(str(MANIFESTS / folder)))


def with_components(folder: Path, *components: str, pools: Iterable[str] = ()) -> OBJECTS:
    """The overlay minimal with components, by kustomize."""
    own = folder / "own"
    own.mkdir(exist_ok=True)
    here = os.path.relpath(MANIFESTS, own.resolve())
    content = {
        "resources": [f"{here}/overlays/minimal", *(f"{here}/pools/{each}" for each in pools)],
        "components": [f"{here}/components/{each}" for each in components],
    }
    (own / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return by_name(run_kubectl(str(own)))


def normal(value: Any) -> Any:
    """With lists of named entries as mappings: their order means nothing."""
    if isinstance(value, dict):
        return {key: normal(inner) for key, inner in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(each, dict) and "name" in each for each in value):
            return {each["name"]: normal(each) for each in value}
        return [normal(each) for each in value]
    return value


def environment(objects: OBJECTS, kind: str, name: str) -> dict[str, Any]:
    [found] = [each for key, each in objects.items() if (key[0], key[2]) == (kind, name)]
    spec = found["spec"]
    pod = spec["predictor"] if kind == "InferenceService" else spec["template"]["spec"]
    return {
        each["name"]: each.get("value") or each["valueFrom"] for each in pod["containers"][0]["env"]
    }


def without_helms(item: dict[str, Any] | None) -> dict[str, Any] | None:
    """Without the labels of every chart, and the one that kustomize gives to some."""
    if item is None:
        return None
    left_out = (*HELMS_OWN, "app.kubernetes.io/part-of")
    metadata = dict(item["metadata"])
    labels = metadata.pop("labels", {})
    kept = {key: text for key, text in labels.items() if key not in left_out}
    return {**item, "metadata": {**metadata, "labels": kept}}


def differences(mine: OBJECTS, other: OBJECTS, *, but: Iterable[str] = ()) -> list[str]:
    """Kustomize has no hooks, which are jobs."""
    keys = {key for key in mine.keys() | other.keys() if key[0] not in (*but, "Job")}
    return [
        str(key)
        for key in sorted(keys)
        if normal(without_helms(mine.get(key))) != normal(without_helms(other.get(key)))
    ]


def test_the_defaults_are_the_overlay_minimal(tmp_path: Path) -> None:
    # `helm install --create-namespace` makes the namespace
    assert differences(render(tmp_path), kustomized("overlays/minimal"), but=["Namespace"]) == []


def test_a_second_pool_is_that_of_kustomize(tmp_path: Path) -> None:
    gpu = {"name": "gpu", "minReplicas": 1, "maxReplicas": 8, "gpus": 1}
    mine = render(tmp_path, pools=[POOL, gpu])
    for key, expected in kustomized("pools/gpu").items():
        assert normal(without_helms(mine[key])) == normal(without_helms(expected))
    assert environment(mine, "Deployment", "pilotlight-gateway")["PILOTLIGHT_POOL"] == "default,gpu"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("components", "values"),
    [
        pytest.param(
            ["engine-vllm", "gpu"], {"pools": [POOL | {"gpus": 1, "vllm": True}]}, id="vLLM"
        ),
        pytest.param(["node-memory"], {"pools": [POOL | {"nodeMemory": True}]}, id="memory"),
        pytest.param(["node-cache"], {"pools": [POOL | {"nodeCache": True}]}, id="cache"),
        pytest.param(
            ["gpu", "node-cache", "node-memory"],
            {"pools": [POOL | {"gpus": 1, "nodeCache": True, "nodeMemory": True}]},
            id="GPUs with both",
        ),
        pytest.param(["knative"], {"pools": [POOL | {"knative": True}]}, id="knative"),
        pytest.param(["without-kserve"], {"kserve": False}, id="without KServe"),
        pytest.param(
            ["gpu", "node-cache", "tls", "redis-tls", "without-kserve"],
            {
                "kserve": False,
                "pools": [POOL | {"gpus": 1, "nodeCache": True}],
                "tls": {"enabled": True},
            },
            id="without KServe, with GPUs and TLS",
        ),
        pytest.param(["grpc"], {"gateway": {"grpc": True}}, id="grpc"),
        pytest.param(["endpoint-picker"], {"gateway": {"endpointPicker": True}}, id="picker"),
        pytest.param(
            ["endpoint-picker", "inference-pools"],
            {"inferencePools": {"enabled": True}},
            id="InferencePools",
        ),
        pytest.param(["keda"], {"autoscaler": {"externalScaler": True}}, id="keda"),
        pytest.param(
            ["external-metrics"], {"controller": {"externalMetrics": True}}, id="external metrics"
        ),
        pytest.param(["open"], {"auth": {"mode": "open"}}, id="open"),
        pytest.param(["workflows"], {"workflows": {"enabled": True}}, id="workflows"),
        pytest.param(["one-model"], {"oneModel": {"enabled": True}}, id="one-model"),
        pytest.param(["ingress"], {"ingress": {"enabled": True}}, id="ingress"),
        pytest.param(["httproute"], {"httpRoute": {"enabled": True}}, id="httproute"),
        pytest.param(["monitoring"], {"monitoring": {"enabled": True}}, id="monitoring"),
        pytest.param(
            ["grpc", "workflows", "tls", "workflows-tls", "redis-tls"],
            {"gateway": {"grpc": True}, "workflows": {"enabled": True}, "tls": {"enabled": True}},
            id="TLS between all parts",
        ),
    ],
)
def test_a_value_is_the_component_of_kustomize(
    components: list[str], values: dict[str, Any], tmp_path: Path
) -> None:
    expected = with_components(tmp_path, *components)
    assert differences(render(tmp_path, **values), expected, but=["Namespace"]) == []


def test_without_kserve_each_pool_is_a_deployment(tmp_path: Path) -> None:
    second = {"name": "gpu", "minReplicas": 0, "maxReplicas": 3, "podAnnotations": {"a.b/c": "d"}}
    objects = render(tmp_path, kserve=False, pools=[POOL, second])
    assert not any(kind == "InferenceService" for kind, _, _ in objects)
    made = objects["Deployment", "pilotlight", "pool-gpu-predictor"]
    bounds = {"pilotlight.io/min-replicas": "0", "pilotlight.io/max-replicas": "3"}
    assert made["metadata"]["annotations"].items() >= bounds.items()
    assert made["metadata"]["labels"]["pilotlight.io/pool"] == "gpu"
    template = made["spec"]["template"]
    assert template["metadata"]["annotations"] == {"a.b/c": "d"}
    assert template["metadata"]["labels"] == made["spec"]["selector"]["matchLabels"]
    assert template["metadata"]["labels"]["pilotlight.io/pool"] == "gpu"
    assert template["spec"]["containers"][0]["image"] == f"{NOWHERE}/runtime:0.1.0"
    wrong = {"images": {"registry": NOWHERE}, "pools": [POOL | {"knative": True}]}
    refused = refusal(tmp_path, kserve=False, **wrong)
    assert "knative needs KServe" in refused


def test_two_pools_with_tls_are_those_of_kustomize(tmp_path: Path) -> None:
    expected = with_components(tmp_path, "pools", "tls", "redis-tls", pools=["gpu"])
    gpu = {"name": "gpu", "minReplicas": 1, "maxReplicas": 8, "gpus": 1}
    mine = render(tmp_path, pools=[POOL, gpu], tls={"enabled": True})
    assert differences(mine, expected, but=["Namespace"]) == []


def test_another_namespace_is_everywhere(tmp_path: Path) -> None:
    objects = render(
        tmp_path,
        namespace="models",
        monitoring={"enabled": True},
        disruptionBudgets=True,
        workflows={"enabled": True},
        tls={"enabled": True},
    )
    assert {key[1] for key in objects} == {"models", ""}
    text = yaml.safe_dump_all(objects.values())
    assert "namespace: pilotlight\n" not in text
    assert not re.search(r"pilotlight-[a-z]+\.pilotlight\b|-n pilotlight\b", text)
    given = environment(objects, "Deployment", "pilotlight-controller")
    gateway = environment(objects, "Deployment", "pilotlight-gateway")
    assert gateway["PILOTLIGHT_OPERATORS"] == "models:pilotlight-operator"
    assert given["PILOTLIGHT_URL"].startswith("https://pilotlight-gateway.models.svc")
    assert given["PILOTLIGHT_ADDRESS"].startswith("http://pilotlight-gateway.models.svc")
    assert "serviceaccount:pilotlight:" not in text
    assert "serviceaccount:models:pilotlight-controller" in text
    assert "'pilotlight-gateway.models.svc.cluster.local'" in text


def test_images_are_of_the_registry_tag_and_digests(tmp_path: Path) -> None:
    digest = "sha256:" + "1" * 64
    images = {
        "registry": "r.example.com/ml",
        "tag": "2",
        "digests": {"platform": digest},
        "pullSecrets": ["pull"],
    }
    objects = render(tmp_path, images=images, pools=[POOL | {"gpus": 2}])
    gateway = objects["Deployment", "pilotlight", "pilotlight-gateway"]["spec"]["template"]["spec"]
    pool = objects["InferenceService", "pilotlight", "pool"]["spec"]["predictor"]
    assert gateway["containers"][0]["image"] == f"r.example.com/ml/platform@{digest}"
    assert pool["containers"][0]["image"] == "r.example.com/ml/runtime-cuda:2"
    assert pool["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert gateway["imagePullSecrets"] == pool["imagePullSecrets"] == [{"name": "pull"}]


def test_a_redis_of_ones_own_replaces_the_charts(tmp_path: Path) -> None:
    objects = render(tmp_path, redis={"urlSecret": "registry"})
    assert not any(name in ("pilotlight-redis", "registry") for _, _, name in objects)
    expected = {"secretKeyRef": {"name": "registry", "key": "url"}}
    for kind, name in (
        ("Deployment", "pilotlight-gateway"),
        ("Deployment", "pilotlight-controller"),
        ("Deployment", "pilotlight-autoscaler"),
        ("InferenceService", "pool"),
    ):
        assert environment(objects, kind, name)["PILOTLIGHT_REDIS_URL"] == expected


def test_credentials_of_tenants_and_storage_are_named(tmp_path: Path) -> None:
    objects = render(
        tmp_path,
        storageSecret="mine",
        auth={
            "apiKeysSecret": "keys",
            "tokenIssuersConfigMap": "issuers",
            "operators": ["a", "b:c"],
        },
    )
    given = environment(objects, "Deployment", "pilotlight-gateway")
    assert given["PILOTLIGHT_OPERATORS"] == "pilotlight:a,b:c"
    assert given["PILOTLIGHT_API_KEYS"] == "/etc/pilotlight/api-keys"
    assert given["PILOTLIGHT_TOKEN_ISSUERS"] == "/etc/pilotlight/token-issuers"
    pod = objects["Deployment", "pilotlight", "pilotlight-gateway"]["spec"]["template"]["spec"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["api-keys"]["secret"]["secretName"] == "keys"
    assert volumes["token-issuers"]["configMap"]["name"] == "issuers"
    pool = objects["InferenceService", "pilotlight", "pool"]["spec"]["predictor"]
    assert pool["containers"][0]["envFrom"][0]["secretRef"]["name"] == "mine"


def test_tenants_of_the_values_have_an_entry_each(tmp_path: Path) -> None:
    pool = POOL | {
        "namespaces": "team-a, team-b",
        "storagePrefixes": "team-a=s3://a/ pvc://models/a; *=s3://public/x=1",
        "quotas": "*=pinned:2 memory:2Gi; team-a=cache:5Gi",
    }
    found = {
        key[2]: each["data"]
        for key, each in render(tmp_path, pools=[pool]).items()
        if "pilotlight.io/tenant-of" in each["metadata"].get("labels", {})
    }
    assert found == {
        "tenant-default.team-a": {
            "namespace": "team-a",
            "storage-prefixes": "s3://a/ pvc://models/a",
            "quotas": "cache:5Gi",
        },
        "tenant-default.team-b": {"namespace": "team-b"},
        "everyone": {
            "namespace": "*",
            "admit": "false",
            "storage-prefixes": "s3://public/x=1",
            "quotas": "pinned:2 memory:2Gi",
        },
    }


def test_namespaced_mode_has_no_right_outside_its_namespaces(tmp_path: Path) -> None:
    objects = render(tmp_path, controller={"watchNamespaces": ["team-a", "team-b"]})
    bound = [each for key, each in objects.items() if key[0] == "ClusterRoleBinding"]
    assert bound == []
    assert not any("Webhook" in kind for kind, _, _ in objects)
    roles = {key[1] for key in objects if key[0] == "Role" and key[2].endswith("-models")}
    assert roles == {"team-a", "team-b", "pilotlight"}
    for key, each in objects.items():
        if key[0] == "RoleBinding" and key[2].endswith("-models"):
            assert each["roleRef"]["kind"] == "Role"
            assert each["subjects"][0]["namespace"] == "pilotlight"
    given = environment(objects, "Deployment", "pilotlight-controller")
    assert set(given["PILOTLIGHT_WATCH_NAMESPACES"].split(",")) == roles
    assert {name for _, namespace, name in objects if not namespace} == {
        "inferenceapplications.pilotlight.io",
        "models.pilotlight.io",
        "pilotlight-transformers",
        "pilotlight-autoscaler-pods",
        "pilotlight-controller-models",
        "pilotlight-controller-components",
        "pilotlight-controller-routes",
        "pilotlight-parked-models",
    }


def test_two_namespaced_releases_share_no_object(tmp_path: Path) -> None:
    once: dict[str, Any] = {"crds": {"install": False}, "tenantRoles": {"create": False}}
    first = render(tmp_path, controller={"watchNamespaces": ["team-a"]})
    second = render(
        tmp_path, namespace="models", controller={"watchNamespaces": ["team-b"]}, **once
    )
    assert first.keys() & second.keys() == set()
    without = render(
        tmp_path,
        controller={"watchNamespaces": ["team-a"]},
        admissionPolicies={"create": False},
        **once,
    )
    assert [key for key in without if not key[1]] == []


def test_an_uninstall_keeps_the_kinds_and_frees_the_models(tmp_path: Path) -> None:
    objects = render(tmp_path, namespace="models", controller={"watchNamespaces": ["team-a"]})
    kinds = [each for key, each in objects.items() if key[0] == "CustomResourceDefinition"]
    assert len(kinds) == 2
    for each in kinds:
        assert each["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    job = objects["Job", "models", "pilotlight-uninstall"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    pod = job["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "pilotlight-controller"
    [container] = pod["containers"]
    assert container["command"] == ["python", "-m", "controller.uninstall"]
    assert container["image"].startswith(f"{NOWHERE}/platform:")
    watched = {each["name"]: each.get("value") for each in container["env"]}
    assert watched["PILOTLIGHT_WATCH_NAMESPACES"] == "team-a,models"


def test_cert_manager_takes_the_right_to_change_webhooks(tmp_path: Path) -> None:
    expected = with_components(tmp_path, "cert-manager")
    assert differences(render(tmp_path, certManager=True), expected, but=["Namespace"]) == []
    objects = render(tmp_path, namespace="models", certManager=True)
    assert not any(name == "pilotlight-webhooks" for _, _, name in objects)
    names = objects["Certificate", "models", "pilotlight-webhook"]["spec"]["dnsNames"]
    assert names[0] == "pilotlight-webhook.models.svc"
    for kind, _, name in objects:
        if kind.endswith("WebhookConfiguration"):
            annotations = objects[kind, "", name]["metadata"]["annotations"]
            assert annotations["cert-manager.io/inject-ca-from"] == "models/pilotlight-webhook"
    production = kustomized("overlays/production")
    assert not any(name == "pilotlight-webhooks" for _, _, name in production)


def test_production_options(tmp_path: Path) -> None:
    objects = render(
        tmp_path,
        disruptionBudgets=True,
        monitoring={"enabled": True},
        gateway={"autoscaling": True},
        controller={"replicas": 2},
    )
    kinds = {key[0] for key in objects}
    assert {
        "PodDisruptionBudget",
        "HorizontalPodAutoscaler",
        "PodMonitor",
        "PrometheusRule",
    } <= kinds
    gateway = objects["Deployment", "pilotlight", "pilotlight-gateway"]
    assert "replicas" not in gateway["spec"]


PARTS = {
    "gateway": "pilotlight-gateway",
    "controller": "pilotlight-controller",
    "autoscaler": "pilotlight-autoscaler",
    "redis": "pilotlight-redis",
    "workflows": "pilotlight-workflows",
}
"""The Deployment of each group of values."""
PLACE: dict[str, Any] = {
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone"}],
    "priorityClassName": "high",
}


def pod_of(objects: OBJECTS, name: str) -> dict[str, Any]:
    return dict(objects["Deployment", "pilotlight", name]["spec"]["template"]["spec"])


def predictor(objects: OBJECTS, name: str = "pool") -> dict[str, Any]:
    return dict(objects["InferenceService", "pilotlight", name]["spec"]["predictor"])


def test_parts_run_where_and_with_what_the_values_say(tmp_path: Path) -> None:
    values = {
        **PLACE,
        "resources": {"requests": {"cpu": "3"}, "limits": {"memory": "7Gi"}},
        "podAnnotations": {"note": "mine"},
        "extraEnv": [
            {"name": "PILOTLIGHT_LOG_LEVEL", "value": "DEBUG"},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "own", "key": "key"}}},
        ],
    }
    given: dict[str, Any] = dict.fromkeys(PARTS, values)
    given["workflows"] = values | {"enabled": True}
    objects = render(tmp_path, pools=[POOL | values], **given)
    plain = render(tmp_path, workflows={"enabled": True})
    for name in PARTS.values():
        pod = pod_of(objects, name)
        assert {key: pod[key] for key in PLACE} == PLACE
        template = objects["Deployment", "pilotlight", name]["spec"]["template"]
        assert template["metadata"]["annotations"]["note"] == "mine"
        [container], [before] = pod["containers"], pod_of(plain, name)["containers"]
        assert container["resources"]["requests"] == before["resources"]["requests"] | {"cpu": "3"}
        assert container["resources"]["limits"] == before["resources"]["limits"] | {"memory": "7Gi"}
        assert values["extraEnv"] == [
            e for e in container["env"] if e["name"] in ("KEY", "PILOTLIGHT_LOG_LEVEL")
        ]
    pod = predictor(objects)
    assert {key: pod[key] for key in PLACE} == PLACE
    assert pod["containers"][0]["resources"]["limits"] == {"cpu": "8", "memory": "7Gi"}
    assert environment(objects, "InferenceService", "pool")["PILOTLIGHT_LOG_LEVEL"] == "DEBUG"
    annotations = objects["InferenceService", "pilotlight", "pool"]["metadata"]["annotations"]
    assert annotations["note"] == "mine"


def test_service_accounts_carry_a_clouds_role(tmp_path: Path) -> None:
    role = {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/models"}}
    parts = ("gateway", "controller", "autoscaler", "workflows", "runtime")
    values: dict[str, Any] = {each: {"serviceAccount": role} for each in parts}
    values["workflows"]["enabled"] = True
    objects = render(tmp_path, **values)
    for each in parts:
        account = objects["ServiceAccount", "pilotlight", f"pilotlight-{each}"]
        assert account["metadata"]["annotations"] == role["annotations"]


def test_a_gpus_node_without_feature_discovery_is_taken(tmp_path: Path) -> None:
    plain = predictor(render(tmp_path, pools=[POOL | {"gpus": 1}]))
    assert "nvidia.com/gpu.present" in str(plain["affinity"])
    pod = predictor(render(tmp_path, pools=[POOL | {"gpus": 1, "affinity": {}}]))
    assert "affinity" not in pod
    assert pod["tolerations"] == plain["tolerations"]


@pytest.mark.parametrize(
    ("pool", "tiers", "memory"),
    [
        pytest.param({}, {"device": "2Gi", "host": "1Gi", "disk": "8Gi"}, (4, 6), id="base"),
        pytest.param({}, {"device": "12Gi", "host": "24Gi", "disk": "64Gi"}, (37, 39), id="large"),
        pytest.param({"gpus": 1}, {"host": "32Gi", "disk": "80Gi"}, (40, 40), id="a GPU's"),
        pytest.param({"gpus": 1}, {"host": "100Gi", "disk": "200Gi"}, (108, 108), id="large GPU"),
    ],
)
def test_memory_and_disk_follow_from_the_tiers(
    pool: dict[str, Any], tiers: dict[str, str], memory: tuple[int, int], tmp_path: Path
) -> None:
    pod = predictor(render(tmp_path, pools=[POOL | pool | {"tiers": tiers}]))
    if tiers in ({"device": "2Gi", "host": "1Gi", "disk": "8Gi"}, {"host": "32Gi", "disk": "80Gi"}):
        plain = predictor(render(tmp_path, pools=[POOL | pool]))  # what the manifests have
        assert in_bytes(sizes(plain)) == in_bytes(sizes(pod))
    found = in_bytes(sizes(pod))
    assert (found["request"], found["limit"]) == tuple(each * GIB for each in memory)
    assert found["shm"] == found["HOST_BYTES"] == quantity(tiers["host"])
    assert found["DISK_BYTES"] == quantity(tiers["disk"])
    assert found["cache"] == found["ephemeral"] == quantity(tiers["disk"]) * 5 / 4


def sizes(pod: dict[str, Any]) -> dict[str, str]:
    [container] = pod["containers"]
    volumes = {each["name"]: each.get("emptyDir", {}) for each in pod["volumes"]}
    resources = container["resources"]
    return {
        "request": resources["requests"]["memory"],
        "limit": resources["limits"]["memory"],
        "ephemeral": resources["requests"]["ephemeral-storage"],
        "cache": volumes["cache"]["sizeLimit"],
        "shm": volumes["shared-memory"]["sizeLimit"],
        **{
            each["name"].removeprefix("PILOTLIGHT_"): each["value"]
            for each in container["env"]
            if each["name"].endswith("_BYTES")
        },
    }


def in_bytes(found: dict[str, str]) -> dict[str, float]:
    return {name: quantity(text) for name, text in found.items()}


def test_a_pool_of_one_pod_is_replaced_without_a_gap_unless_a_gpu_is_scarce(tmp_path: Path) -> None:
    rollouts = [
        predictor(render(tmp_path, pools=[POOL | pool]))["deploymentStrategy"]["rollingUpdate"]
        for pool in (
            {},
            {"gpus": 1},
            {"gpus": 1, "deploymentStrategy": {"rollingUpdate": {"maxSurge": 2}}},
        )
    ]
    assert rollouts == [
        {"maxSurge": 1, "maxUnavailable": 0},
        {"maxSurge": 0, "maxUnavailable": 1},
        {"maxSurge": 2},
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"gateway": {"url": "https://models.example.com/"}}, "https://models.example.com"),
        ({"ingress": {"enabled": True, "hosts": ["a.example.com"]}}, "http://a.example.com"),
        (
            {
                "ingress": {
                    "enabled": True,
                    "hosts": ["a.example.com"],
                    "tls": [{"secretName": "t"}],
                }
            },
            "https://a.example.com",
        ),
        ({"tls": {"enabled": True}}, "https://pilotlight-gateway.pilotlight.svc.cluster.local"),
    ],
)
def test_a_models_url_is_where_clients_reach_the_gateway(
    values: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    given = environment(render(tmp_path, **values), "Deployment", "pilotlight-controller")
    assert given["PILOTLIGHT_URL"] == f"{expected}/serving/{{namespace}}/{{name}}"
    assert "PILOTLIGHT_ADDRESS" not in given  # inside the cluster: the Service


def test_ingress_and_route_are_the_operators(tmp_path: Path) -> None:
    tls = [{"secretName": "own", "hosts": ["a.example.com"]}]
    parents = [{"name": "edge", "namespace": "gateways"}]
    objects = render(
        tmp_path,
        ingress={
            "enabled": True,
            "ingressClassName": "nginx",
            "annotations": {"cert-manager.io/cluster-issuer": "acme"},
            "hosts": ["a.example.com", "b.example.com"],
            "tls": tls,
        },
        httpRoute={"enabled": True, "parentRefs": parents, "hostnames": ["c.example.com"]},
    )
    ingress = objects["Ingress", "pilotlight", "pilotlight-gateway"]
    spec = ingress["spec"]
    assert (spec["ingressClassName"], spec["tls"]) == ("nginx", tls)
    assert [each["host"] for each in spec["rules"]] == ["a.example.com", "b.example.com"]
    assert all(each["http"]["paths"] for each in spec["rules"])
    annotations = ingress["metadata"]["annotations"]
    assert annotations["cert-manager.io/cluster-issuer"] == "acme"
    assert annotations["nginx.ingress.kubernetes.io/proxy-body-size"]
    route = objects["HTTPRoute", "pilotlight", "pilotlight-gateway"]["spec"]
    assert (route["parentRefs"], route["hostnames"]) == (parents, ["c.example.com"])


def test_a_certificate_of_ones_own_takes_cert_managers_place(tmp_path: Path) -> None:
    objects = render(tmp_path, tls={"enabled": True, "existingSecret": "own"})
    assert not any("cert-manager" in each["apiVersion"] for each in objects.values())
    pods = [pod_of(objects, "pilotlight-gateway"), predictor(objects)]
    for pod in pods:
        [volume] = [each for each in pod["volumes"] if each["name"] == "tls"]
        assert volume["secret"]["secretName"] == "own"


def test_prometheus_is_let_in_from_its_namespace(tmp_path: Path) -> None:
    objects = render(
        tmp_path,
        monitoring={"namespace": "prometheus"},
        workflows={"enabled": True},
        pools=[POOL | {"knative": True}],
    )
    policies = [each for key, each in objects.items() if key[0] == "NetworkPolicy"]
    texts = [yaml.safe_dump(each) for each in policies]
    assert sum("prometheus" in each for each in texts) == 6
    assert not any(re.search(r"\bmonitoring\b", each) for each in texts)


def test_nothing_is_granted_by_default(tmp_path: Path) -> None:
    objects = render(tmp_path)
    assert objects["ConfigMap", "pilotlight", "everyone"]["data"] == {"namespace": "*"}
    for kind, name in (("InferenceService", "pool"), ("Deployment", "pilotlight-gateway")):
        assert environment(objects, kind, name)["AWS_EC2_METADATA_DISABLED"] == "true"
    allowed = [{"name": "AWS_EC2_METADATA_DISABLED", "value": "false"}]
    objects = render(tmp_path, pools=[POOL | {"extraEnv": allowed}])
    given = environment(objects, "InferenceService", "pool")
    assert given["AWS_EC2_METADATA_DISABLED"] == "false"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param({}, "images.registry must name", id="no registry"),
        pytest.param({"gateways": {}}, "gateways", id="a name with a typo"),
        pytest.param({"gateway": {"replica": 2}}, "replica", id="below another"),
        pytest.param({"pools": [{"name": "a", "gpu": 1}]}, "gpu", id="in a pool"),
        pytest.param({"pools": [{"gpus": 1}]}, "name", id="a pool by --set pools[0].gpus=1"),
        pytest.param({"pools": [{"name": "a", "tiers": {"disk": "80"}}]}, "disk", id="no unit"),
        pytest.param({"gateway": {"url": "models.example.com"}}, "url", id="no scheme"),
        pytest.param(
            {
                "images": {"registry": NOWHERE},
                "tls": {"enabled": True},
                "pools": [POOL | {"knative": True}],
            },
            "exclude each other",
            id="TLS with Knative",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_name(
    values: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert words in refusal(tmp_path, **values)


def test_labels_are_those_of_every_chart(tmp_path: Path) -> None:
    for key, each in render(tmp_path, monitoring={"enabled": True}).items():
        expected = set(HELMS_OWN) if key[0] != "InferenceService" else {HELMS_OWN[1]}
        assert expected <= set(each["metadata"]["labels"]), key
        assert each["metadata"]["labels"]["app.kubernetes.io/part-of"] == "pilotlight"


def test_helm_finds_nothing_to_complain_of(tmp_path: Path) -> None:
    chart = helm_chart(tmp_path / "chart")
    command = [str(helm()), "lint", "--strict", str(chart)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"\[(WARNING|ERROR)\]", done.stdout), done.stdout


EVERYTHING: dict[str, Any] = {
    "images": {"registry": NOWHERE},
    "pools": [POOL],
    "workflows": {"enabled": True},
    "tls": {"enabled": True},
    "ingress": {"enabled": True},
    "httpRoute": {"enabled": True},
    "inferencePools": {"enabled": True},
    "monitoring": {"enabled": True},
}
"""With the parts on which values act."""
SCHEMA = json.loads((MANIFESTS / "chart" / "values.schema.json").read_text())
OTHER: dict[str, Any] = {
    "extraEnv": [{"name": "OTHER", "value": "x"}],
    "digests": {"platform": "sha256:" + "0" * 64},
    "deploymentStrategy": {"type": "Recreate"},
    "disk": "16Gi", "host": "16Gi", "device": "16Gi",
    "url": "https://other.example.com",
    "ingressGateways": ["gateways/other"],
    "storagePrefixes": "*=s3://other/",
    "quotas": "*=pinned:1",
}  # fmt: skip
"""Of values whose text has a form, by their last name."""


def paths(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every value of the schema; of the pools those of one."""
    inner = resolved(schema, path)
    for name, each in inner.get("properties", {}).items():
        yield from paths(each, (*path, name))
    if "properties" not in inner:
        yield path


def resolved(schema: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    found = SCHEMA["$defs"][name] if name else schema
    return dict(found["items"] if path == ("pools",) else found)


def schema_at(path: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMA
    for length, name in enumerate(path, 1):
        found = resolved(found["properties"][name], path[:length])
    return found


def changed(path: tuple[str, ...]) -> dict[str, Any]:
    """The values with another one at the path."""
    values = deepcopy(EVERYTHING)
    if path[-1] == "knative":
        values["tls"] = {"enabled": False}
    inside: dict[str, Any] = values
    for name in path[:-1]:
        inside = inside.setdefault(name, {})
        inside = inside[0] if isinstance(inside, list) else inside
    schema, before = schema_at(path), inside.get(path[-1])
    kind = schema.get("type", "string")
    others = {
        "boolean": not (default_of(path) if before is None else before),
        "integer": 7,
        "string": next((e for e in schema.get("enum", []) if e != default_of(path)), "other"),
        "object": {"other": "x"},
        "array": ["other"] if schema.get("items", {}).get("type") == "string" else [{"name": "x"}],
    }
    inside[path[-1]] = OTHER.get(path[-1], others[kind])
    return values


def default_of(path: tuple[str, ...]) -> Any:
    found = yaml.safe_load((MANIFESTS / "chart" / "values.yaml").read_text())
    for name in path:
        found = found[0] if isinstance(found, list) else found
        found = (found or {}).get(name)
    return found


IMPLIED = ("gateway", "endpointPicker")
"""By `inferencePools`, which are in EVERYTHING."""
EACH = [each for each in paths(SCHEMA) if each not in (("global",), IMPLIED)]


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return helm_chart(tmp_path_factory.mktemp("helm") / "chart")


@pytest.fixture(scope="module")
def installed(chart: Path) -> str:
    made = template(chart, chart.parent, namespace="pilotlight", values=EVERYTHING)
    assert made.returncode == 0, made.stderr
    return made.stdout


@pytest.mark.slow  # a hundred runs of helm
@pytest.mark.parametrize("path", EACH, ids=".".join)
def test_a_value_changes_what_is_installed(
    path: tuple[str, ...], chart: Path, installed: str, tmp_path: Path
) -> None:
    made = template(chart, tmp_path, namespace="pilotlight", values=changed(path))
    assert made.returncode == 0, made.stderr
    assert made.stdout != installed
