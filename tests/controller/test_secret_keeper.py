"""The rotation of Secrets, and the manifests that mount them."""

from typing import Any

import pytest

from common.pod_secret import parse_secrets
from controller.secret_keeper import OVERLAP_S, PODS, PODS_ENTRY, REDIS, REDIS_USERS, next_secrets
from registry.redis.acl import Role
from registry.redis.server_address import password_file
from tests.rendered import kustomized

OLD, NEW = "old-secret-of-pods", "new-secret-of-pods"
DAY_S = 86_400.0


def test_a_period_after_the_last_change_a_secret_is_added() -> None:
    assert next_secrets(OLD, DAY_S - 1, DAY_S) is None
    added = next_secrets(OLD, DAY_S, DAY_S)
    assert added is not None
    assert added[0] == OLD
    assert parse_secrets("\n".join(added)) == added


def test_the_old_secret_goes_when_all_kubelets_had_time() -> None:
    assert next_secrets(f"{OLD}\n{NEW}", OVERLAP_S - 1, DAY_S) is None
    assert next_secrets(f"{OLD}\n{NEW}", OVERLAP_S, DAY_S) == (NEW,)


@pytest.mark.parametrize("text", ["", "short", "\n"])
def test_an_unusable_secret_is_replaced_at_once(text: str) -> None:
    replaced = next_secrets(text, 0.0, DAY_S)
    assert replaced is not None
    assert parse_secrets(replaced[0]) == replaced


PARTS = {
    Role.GATEWAY: ("Deployment", "pilotlight-gateway"),
    Role.AUTOSCALER: ("Deployment", "pilotlight-autoscaler"),
    Role.SCHEDULER: ("Deployment", "pilotlight-workflows"),
    Role.POD: ("InferenceService", "pool"),
}


def _pod(found: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = found["spec"]
    return spec["predictor"] if "predictor" in spec else dict(spec["template"]["spec"])


def _environment(pod: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}


@pytest.mark.parametrize("overlay", ["minimal", "production"])
def test_gateway_autoscaler_scheduler_and_pods_mount_their_secrets(overlay: str) -> None:
    found = kustomized("workflows", overlay=overlay)
    for role, part in PARTS.items():
        pod = _pod(found[part])
        mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        volume = next(each for each in pod["volumes"] if each["name"] == "pod-secret")
        assert volume["projected"]["sources"] == [  # not optional: no pod is open meanwhile
            {"secret": {"name": PODS}},
            {"secret": {"name": REDIS, "items": [{"key": role, "path": "redis"}]}},
        ]
        named = _environment(pod)["PILOTLIGHT_POD_SECRET_FILE"]
        assert named == f"{mounts['pod-secret']}/{PODS_ENTRY}"
    rules = [
        (each["verbs"], each.get("resourceNames"))
        for each in found["Role", "pilotlight-controller"]["rules"]
    ]
    assert (["get", "update"], [PODS, REDIS]) in rules


@pytest.mark.parametrize("components", [("workflows",), ("workflows", "tls", "redis-tls")])
def test_each_part_logs_in_to_the_bases_redis_by_its_role(components: tuple[str, ...]) -> None:
    found = kustomized(*components)
    parts = {**PARTS, Role.CONTROLLER: ("Deployment", "pilotlight-controller")}
    for role, part in parts.items():
        url = _environment(_pod(found[part]))["PILOTLIGHT_REDIS_URL"]
        assert f"://{role}@" in url
        folder = "/tmp" if role is Role.CONTROLLER else "/etc/pilotlight/pods"
        assert password_file(url) == f"{folder}/redis"
    redis = _pod(found["Deployment", "pilotlight-redis"])
    [users] = [each for each in redis["volumes"] if each["name"] == "users"]
    assert users["secret"]["secretName"] == REDIS
    assert users["secret"]["items"] == [{"key": REDIS_USERS, "path": REDIS_USERS}]
    arguments = redis["containers"][0]["args"]
    file = arguments[arguments.index("--aclfile") + 1]
    [mount] = [each for each in redis["containers"][0]["volumeMounts"] if each["name"] == "users"]
    assert file == f"{mount['mountPath']}/{REDIS_USERS}"


def test_redis_leaves_a_lost_node_after_half_a_minute() -> None:
    tolerations = _pod(kustomized()["Deployment", "pilotlight-redis"])["tolerations"]
    assert {each["key"]: each["tolerationSeconds"] for each in tolerations} == {
        "node.kubernetes.io/not-ready": 30,
        "node.kubernetes.io/unreachable": 30,
    }
