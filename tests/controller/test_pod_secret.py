"""The rotation of the pods' Secret, and the manifests that mount it."""

import shutil
from typing import Any

import pytest

from common.pod_secret import parse_secrets
from controller.pod_secret import ENTRY, OVERLAP_S, SECRET, next_secrets
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


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize("overlay", ["minimal", "production"])
def test_gateway_autoscaler_and_pods_mount_the_secret(overlay: str) -> None:
    found = kustomized(overlay=overlay)
    pods: list[dict[str, Any]] = [
        found["Deployment", "pilotlight-gateway"]["spec"]["template"]["spec"],
        found["Deployment", "pilotlight-autoscaler"]["spec"]["template"]["spec"],
        found["InferenceService", "pool"]["spec"]["predictor"],
    ]
    for pod in pods:
        container = pod["containers"][0]
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        environment = {each["name"]: each.get("value") for each in container["env"]}
        volume = next(each for each in pod["volumes"] if each["name"] == "pod-secret")
        assert volume["secret"] == {"secretName": SECRET}  # not optional: no pod is open meanwhile
        assert environment["PILOTLIGHT_POD_SECRET_FILE"] == f"{mounts['pod-secret']}/{ENTRY}"
    role = found["Role", "pilotlight-controller"]
    rules = [(each["verbs"], each.get("resourceNames")) for each in role["rules"]]
    assert (["get", "update"], [SECRET]) in rules
