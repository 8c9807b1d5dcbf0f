"""The components with a model server, gpu-mps and grpc, rendered: what their processes read."""

import re
from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

import pytest

from autoscaler.settings import AutoscalerSettings
from common.settings_table import read_settings
from gateway.settings import GatewaySettings
from runtime.settings import RuntimeSettings
from tests.rendered import MANIFESTS, OBJECTS, kustomized

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


def test_engines_of_vllm_have_an_environment_of_their_own() -> None:
    (ours,) = predictor(kustomized("gpu", "engine-vllm"))["containers"]
    recipe = (MANIFESTS / "images" / "runtime.Containerfile").read_text()
    python = settings_of(ours).engine_python
    assert python.removesuffix("/bin/python") in re.findall("COPY --from=build (\\S+)", recipe)


def test_a_pool_of_mlserver_stands_beside_the_default_one() -> None:
    objects = kustomized(pools=["mlserver"])
    pods = [predictor(objects, name)["containers"] for name in ("pool", "pool-mlserver")]
    assert [len(each) for each in pods] == [1, 2]
    assert [settings_of(each[0]).pool for each in pods] == ["default", "mlserver"]
    assert ("Deployment", "pilotlight-autoscaler-mlserver") in objects


@pytest.fixture(scope="module", params=["minimal", "production"])
def mps(request: pytest.FixtureRequest) -> OBJECTS:
    return kustomized("gpu-mps", overlay=request.param)


def test_pods_take_places_on_their_gpu_within_the_plugins_cap(mps: OBJECTS) -> None:
    [container] = predictor(mps)["containers"]
    settings = settings_of(container)
    assert (settings.takes_places, settings.max_share, settings.share) == ("gpu", 25.0, 0.0)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_pods_run_where_gpus_are_of_the_profiled_product(mps: OBJECTS) -> None:
    assert set(predictor(mps)["nodeSelector"]) == {
        "nvidia.com/gpu.product",
        "nvidia.com/mps.capable",
    }


def test_the_autoscaler_plans_placements_of_the_cluster(mps: OBJECTS) -> None:
    autoscaler = mps["Deployment", "pilotlight-autoscaler"]["spec"]["template"]["spec"]
    given = environment(autoscaler["containers"][0])
    given["PILOTLIGHT_POD_SECRET_FILE"] = ""
    settings = read_settings(AutoscalerSettings, [], given, prog="autoscaler")
    assert (settings.placement, settings.kubernetes) == ("predicted-goodput", True)


GATEWAY = "pilotlight-gateway"


@pytest.fixture(scope="module")
def grpc() -> OBJECTS:
    return kustomized("grpc")


def container(objects: OBJECTS) -> dict[str, Any]:
    [found] = objects["Deployment", GATEWAY]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_calls_reach_the_port_that_the_gateway_serves(grpc: OBJECTS) -> None:
    found = container(grpc)
    given = {name: value for name, value in environment(found).items() if "GRPC" in name}
    settings = read_settings(GatewaySettings, [], given, prog="gateway")
    ports = {each["name"]: each["containerPort"] for each in found["ports"]}
    assert ports["grpc"] == settings.grpc_port == 8081
    assert len(set(ports.values())) == len(ports)
    [port] = [each for each in grpc["Service", GATEWAY]["spec"]["ports"] if each["name"] == "grpc"]
    assert port["targetPort"] == "grpc"


def test_proxies_are_told_that_it_is_http2_without_tls(grpc: OBJECTS) -> None:
    ports = {each["name"]: each for each in grpc["Service", GATEWAY]["spec"]["ports"]}
    assert ports["grpc"]["appProtocol"] == "kubernetes.io/h2c"
    assert "appProtocol" not in ports["http"]


def test_clients_may_connect(grpc: OBJECTS) -> None:
    rules = grpc["NetworkPolicy", "clients-to-gateway"]["spec"]["ingress"]
    assert [rule["ports"] for rule in rules if "from" not in rule] == [
        [{"port": "http"}, {"port": "grpc"}]
    ]


def test_without_the_component_no_port_is_open() -> None:
    objects = kustomized()
    assert "8081" not in str(container(objects))
    assert [each["name"] for each in objects["Service", GATEWAY]["spec"]["ports"]] == ["http"]


def test_tls_and_grpc_stand_beside_each_other() -> None:
    ports = kustomized("grpc", "tls")["Service", GATEWAY]["spec"]["ports"]
    assert {each["name"]: each["port"] for each in ports} == {
        "http": 80,
        "https": 443,
        "grpc": 8081,
    }


def test_proxies_reach_picker_and_pods() -> None:
    objects = kustomized("endpoint-picker")
    found = container(objects)
    given = {name: value for name, value in environment(found).items() if "PICKER" in name}
    settings = read_settings(GatewaySettings, [], given, prog="gateway")
    ports = {each["name"]: each["containerPort"] for each in found["ports"]}
    assert ports["picker"] == settings.picker_port == 9002
    service = {each["name"]: each for each in objects["Service", GATEWAY]["spec"]["ports"]}
    assert (service["picker"]["port"], service["picker"]["targetPort"]) == (9002, "picker")
    proxies = {"namespaceSelector": {"matchLabels": {"pilotlight.io/proxies": "true"}}}
    for policy, port in (("clients-to-gateway", "picker"), ("gateway-to-pool", 8080)):
        rules = objects["NetworkPolicy", policy]["spec"]["ingress"]
        assert {"from": [proxies], "ports": [{"port": port}]} in rules
