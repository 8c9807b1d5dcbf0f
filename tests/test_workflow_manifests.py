"""The component `workflows`, rendered: what its process reads, and who is told of it."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from common.settings_table import read_settings
from gateway.settings import GatewaySettings
from tests.rendered import MANIFESTS, OBJECTS, kustomized
from workflows.settings import SchedulerSettings

WORKFLOWS, GATEWAY = "pilotlight-workflows", "pilotlight-gateway"


@pytest.fixture(scope="module")
def rendered() -> OBJECTS:
    return kustomized("workflows")


def container(deployment: Mapping[str, Any]) -> dict[str, Any]:
    [found] = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def environment(deployment: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container(deployment)["env"]}


def test_the_scheduler_reads_every_variable(rendered: Any, tmp_path: Path) -> None:
    given = environment(rendered["Deployment", WORKFLOWS])
    known = {f"PILOTLIGHT_{each.name.upper()}" for each in fields(SchedulerSettings)}
    assert set(given) <= known
    secret = tmp_path / "secrets"
    secret.write_text("s" * 32)
    given["PILOTLIGHT_POD_SECRET_FILE"] = str(secret)
    settings = read_settings(SchedulerSettings, [], given, prog="workflows")
    [port] = container(rendered["Deployment", WORKFLOWS])["ports"]
    assert (settings.port, settings.host) == (port["containerPort"], "0.0.0.0")
    assert settings.gateway_url == f"http://{GATEWAY}"


def test_the_gateway_gets_the_schedulers_address(rendered: Any) -> None:
    url = environment(rendered["Deployment", GATEWAY])["PILOTLIGHT_WORKFLOWS_URL"]
    assert url == f"http://{WORKFLOWS}"
    assert "workflows_url" in {each.name for each in fields(GatewaySettings)}
    service = rendered["Service", WORKFLOWS]["spec"]
    labels = rendered["Deployment", WORKFLOWS]["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()


def test_the_scheduler_has_no_rights(rendered: Any) -> None:
    pod = rendered["Deployment", WORKFLOWS]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    bound = [
        subject["name"]
        for (kind, _), each in rendered.items()
        if kind.endswith("Binding")
        for subject in each.get("subjects", [])
    ]
    assert WORKFLOWS not in bound


def test_images_hold_the_package() -> None:
    for name in ("platform", "runtime"):
        text = (MANIFESTS / "images" / f"{name}.Containerfile").read_text()
        assert "COPY workflows workflows" in text


def test_the_controller_reads_graphs_and_the_webhook_checks_them(rendered: Any) -> None:
    rules = rendered["ClusterRole", "pilotlight-controller"]["rules"]
    [rule] = [each for each in rules if "inferencegraphs" in each["resources"]]
    assert set(rule["verbs"]) == {"get", "list", "watch"}
    configuration = rendered["ValidatingWebhookConfiguration", "annotations.pilotlight.io"]
    checked = [
        resource
        for webhook in configuration["webhooks"]
        for each in webhook["rules"]
        for resource in each["resources"]
    ]
    assert "inferencegraphs" in checked
