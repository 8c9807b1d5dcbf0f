"""The components with a model server beside each pod, rendered: what pod and server agree on."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from registry.settings_table import read_settings
from runtime.settings import RuntimeSettings
from tests.rendered import kustomized

if TYPE_CHECKING:
    from tests.rendered import OBJECTS

KNOWN = {f"PILOTLIGHT_{each.name.upper()}" for each in fields(RuntimeSettings)}


def predictor(objects: OBJECTS, name: str = "pool") -> dict[str, Any]:
    return dict(objects["InferenceService", name]["spec"]["predictor"])


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def settings_of(container: dict[str, Any]) -> RuntimeSettings:
    """As the pod reads them: settings that do not go together are an error."""
    given = {name: value for name, value in environment(container).items() if name in KNOWN}
    given |= {"PILOTLIGHT_POD_NAME": "pod-a", "PILOTLIGHT_POD_SECRET_FILE": ""}
    return read_settings(RuntimeSettings, [], given, prog="runtime")


@pytest.mark.parametrize("component", ["engine-mlserver", "engine-triton"])
@pytest.mark.parametrize("overlay", ["minimal", "production"])
def test_pod_and_server_share_loopback_and_the_disk_tiers_volume(
    component: str, overlay: str
) -> None:
    ours, server = predictor(kustomized(component, overlay=overlay))["containers"]
    settings = settings_of(ours)
    url = urlsplit(settings.engine_url)
    assert url.hostname == urlsplit(settings.engine_metrics).hostname == "127.0.0.1"
    words = " ".join([*server.get("args", []), *environment(server).values()])
    assert str(url.port) in words
    assert settings.engine_repository in words
    assert "127.0.0.1" in words
    mounts = {each["name"]: each for each in server["volumeMounts"]}
    assert mounts["cache"]["readOnly"]
    assert settings.engine_repository.startswith(mounts["cache"]["mountPath"])
    assert settings.repository_path.is_relative_to(settings.cache_path)  # hard links
    own = {each["name"]: each["mountPath"] for each in ours["volumeMounts"]}
    assert own["cache"] == mounts["cache"]["mountPath"]


@pytest.mark.parametrize("component", ["engine-mlserver", "engine-triton"])
def test_the_server_has_limits_and_no_rights(component: str) -> None:
    pod = predictor(kustomized(component))
    for container in (*pod["containers"], *pod.get("initContainers", [])):
        assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert "envFrom" not in pod["containers"][1]  # the pool's storage credentials


def test_the_gpu_is_tritons() -> None:
    ours, server = predictor(kustomized("engine-triton"))["containers"]
    assert "nvidia.com/gpu" not in ours["resources"]["limits"]
    assert server["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert settings_of(ours).device == "cpu"


def test_a_pool_of_mlserver_stands_beside_the_default_one() -> None:
    objects = kustomized(pools=["mlserver"])
    pods = [predictor(objects, name)["containers"] for name in ("pool", "pool-mlserver")]
    assert [len(each) for each in pods] == [1, 2]
    assert [settings_of(each[0]).pool for each in pods] == ["default", "mlserver"]
    assert ("Deployment", "pilotlight-autoscaler-mlserver") in objects
