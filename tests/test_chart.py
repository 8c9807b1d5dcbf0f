"""The Helm chart renders the objects that kustomize renders, and what its values change."""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.places import program
from tests.rendered import MANIFESTS, helm_chart, load_all, run_kubectl

OBJECTS = dict[tuple[str, str, str], dict[str, Any]]
POOL = {"name": "default", "minReplicas": 1, "maxReplicas": 8}


def helm() -> Path:
    try:
        return program("helm")
    except FileNotFoundError as error:
        pytest.skip(str(error))


def by_name(text: str) -> OBJECTS:
    found = load_all(text)
    result = {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each
        for each in found
    }
    assert len(result) == len(found), "an object is rendered twice"
    return result


def render(tmp_path: Path, *, namespace: str = "pilotlight", **values: Any) -> OBJECTS:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    chart = helm_chart(tmp_path / "chart")
    command = [
        str(helm()),
        "template",
        "pilotlight",
        str(chart),
        "--namespace",
        namespace,
        "--values",
        str(file),
        "--kube-version",
        "1.34.4",
    ]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return by_name(made.stdout)


def kustomized(folder: str) -> OBJECTS:
    return by_name(run_kubectl(str(MANIFESTS / folder)))


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


def differences(mine: OBJECTS, other: OBJECTS, *, but: Iterable[str] = ()) -> list[str]:
    keys = {key for key in mine.keys() | other.keys() if key[0] not in but}
    return [str(key) for key in sorted(keys) if normal(mine.get(key)) != normal(other.get(key))]


def test_the_defaults_are_the_overlay_minimal(tmp_path: Path) -> None:
    # `helm install --create-namespace` makes the namespace
    assert differences(render(tmp_path), kustomized("overlays/minimal"), but=["Namespace"]) == []


def test_a_second_pool_is_that_of_kustomize(tmp_path: Path) -> None:
    gpu = {"name": "gpu", "minReplicas": 1, "maxReplicas": 8, "gpus": 1}
    mine = render(tmp_path, pools=[POOL, gpu])
    for key, expected in kustomized("pools/gpu").items():
        assert normal(mine[key]) == normal(expected)
    assert environment(mine, "Deployment", "pilotlight-gateway")["PILOTLIGHT_POOL"] == "default,gpu"


def test_memory_of_the_node_is_the_component_of_kustomize(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    here = os.path.relpath(MANIFESTS, (tmp_path / "own").resolve())
    content = {
        "resources": [f"{here}/overlays/minimal"],
        "components": [f"{here}/components/node-memory"],
    }
    (tmp_path / "own" / "kustomization.yaml").write_text(yaml.safe_dump(content))
    expected = by_name(run_kubectl(str(tmp_path / "own")))
    pool = POOL | {"nodeMemory": True, "storagePrefixes": "*=s3:// gs:// hf:// pvc://"}
    mine = render(tmp_path, pools=[pool])
    assert differences(mine, expected, but=["Namespace"]) == []
    images = {"registry": "r.example.com/ml", "tag": "2"}
    mine = render(tmp_path, pools=[pool], images=images)
    [owner] = mine["InferenceService", "pilotlight", "pool"]["spec"]["predictor"]["initContainers"]
    assert owner["image"] == "r.example.com/ml/platform:2"


def test_another_namespace_is_everywhere(tmp_path: Path) -> None:
    objects = render(tmp_path, namespace="models", monitoring=True, disruptionBudgets=True)
    assert {key[1] for key in objects} == {"models", ""}
    text = yaml.safe_dump_all(objects.values())
    assert "namespace: pilotlight\n" not in text
    assert "pilotlight-redis.pilotlight" not in text
    given = environment(objects, "Deployment", "pilotlight-controller")
    assert given["PILOTLIGHT_URL"].startswith("http://pilotlight-gateway.models.svc")


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
        gateway={"apiKeysSecret": "keys", "tokenIssuersConfigMap": "issuers"},
    )
    given = environment(objects, "Deployment", "pilotlight-gateway")
    assert given["PILOTLIGHT_API_KEYS"] == "/etc/pilotlight/api-keys"
    assert given["PILOTLIGHT_TOKEN_ISSUERS"] == "/etc/pilotlight/token-issuers"
    pod = objects["Deployment", "pilotlight", "pilotlight-gateway"]["spec"]["template"]["spec"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["api-keys"]["secret"]["secretName"] == "keys"
    assert volumes["token-issuers"]["configMap"]["name"] == "issuers"
    pool = objects["InferenceService", "pilotlight", "pool"]["spec"]["predictor"]
    assert pool["containers"][0]["envFrom"][0]["secretRef"]["name"] == "mine"


def test_grpc_is_the_component_of_kustomize(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    here = os.path.relpath(MANIFESTS, (tmp_path / "own").resolve())
    content = {"resources": [f"{here}/overlays/minimal"], "components": [f"{here}/components/grpc"]}
    (tmp_path / "own" / "kustomization.yaml").write_text(yaml.safe_dump(content))
    expected = by_name(run_kubectl(str(tmp_path / "own")))
    mine = render(tmp_path, gateway={"grpc": True})
    assert differences(mine, expected, but=["Namespace"]) == []


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


def test_production_options(tmp_path: Path) -> None:
    objects = render(
        tmp_path,
        disruptionBudgets=True,
        monitoring=True,
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
