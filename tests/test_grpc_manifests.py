"""The component `grpc`, rendered, and what its image has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.settings import GatewaySettings
from registry.settings_table import read_settings
from tests.rendered import kustomized

if TYPE_CHECKING:
    from tests.rendered import OBJECTS

GATEWAY = "pilotlight-gateway"


@pytest.fixture(scope="module")
def rendered() -> OBJECTS:
    return kustomized("grpc")


def container(objects: OBJECTS) -> dict[str, Any]:
    [found] = objects["Deployment", GATEWAY]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_calls_reach_the_port_that_the_gateway_serves(rendered: OBJECTS) -> None:
    found = container(rendered)
    environment = {each["name"]: each.get("value", "") for each in found["env"]}
    given = {name: environment[name] for name in environment if "GRPC" in name}
    settings = read_settings(GatewaySettings, [], given, prog="gateway")
    ports = {each["name"]: each["containerPort"] for each in found["ports"]}
    assert ports["grpc"] == settings.grpc_port == 8081
    assert len(set(ports.values())) == len(ports)
    [port] = [
        each for each in rendered["Service", GATEWAY]["spec"]["ports"] if each["name"] == "grpc"
    ]
    assert port["targetPort"] == "grpc"


def test_proxies_are_told_that_it_is_http2_without_tls(rendered: OBJECTS) -> None:
    ports = {each["name"]: each for each in rendered["Service", GATEWAY]["spec"]["ports"]}
    assert ports["grpc"]["appProtocol"] == "kubernetes.io/h2c"
    assert "appProtocol" not in ports["http"]


def test_clients_may_connect(rendered: OBJECTS) -> None:
    rules = rendered["NetworkPolicy", "clients-to-gateway"]["spec"]["ingress"]
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
        "http": 80, "https": 443, "grpc": 8081,
    }  # fmt: skip
