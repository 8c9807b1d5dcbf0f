"""Knative Serving with the objects that its authors ship, its programs as pods of the cluster.

Kinds and settings are there from the start, since KServe's manager looks for them once; the
programs start when a test asks for them. Changed is only what an administrator sets. In place of an
ingress controller is `ingresses.py`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import yaml

from tests.kubernetes.places import builds, program, source_tree
from tests.servers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from tests.kubernetes.control_plane import ControlPlane
    from tests.kubernetes.kubectl import Kubectl

NAMESPACE = "knative-serving"
IN_KNATIVE = ("-n", NAMESPACE)
MANIFESTS = ("knative-networking", "knative-caching")
"""Modules that are only unpacked."""
KIND = "CustomResourceDefinition"
PROGRAMS = ("Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget")

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "config-deployment": {"registries-skipping-tag-resolving": "index.docker.io"},
    "config-network": {"ingress-class": "tests.ingress.networking.knative.dev"},
    "config-features": {"kubernetes.podspec-fieldref": "enabled"},
}
"""What an administrator sets: our images have no registry, and pods tell their own address."""


def is_built() -> bool:
    """Whether Knative's programs and manifests are in the cache."""
    try:
        for name in builds():
            if name.startswith("knative-") and name not in MANIFESTS:
                program(name)
    except FileNotFoundError:
        return False
    return all(source_tree(name).exists() for name in MANIFESTS)


def install_kinds(admin: Kubectl) -> None:
    """Everything that Knative ships but its programs and their webhooks."""
    objects = [
        item for item in _shipped() if item["kind"] not in PROGRAMS and "webhooks" not in item
    ]
    kinds = [item for item in objects if item["kind"] == KIND]
    admin.apply(kinds)
    admin.wait("condition=Established", *(f"crd/{item['metadata']['name']}" for item in kinds))
    others = [_with_settings(item) for item in objects if item["kind"] != KIND]
    admin.apply(sorted(others, key=lambda item: item["kind"] != "Namespace"))


def start_knative(plane: ControlPlane) -> None:
    """Start Knative's programs and wait until they and their webhooks answer."""
    admin = plane.admin
    module = [sys.executable, "-m", "tests.kubernetes.ingresses"]
    plane.run("ingresses", [*module, "--kubeconfig", str(admin.kubeconfig)])
    objects = list(_shipped())
    admin.apply(item for item in objects if item["kind"] in PROGRAMS)
    admin.wait("condition=Available", *IN_KNATIVE, "deployment", "--all")
    webhooks = [item for item in objects if "webhooks" in item]
    admin.apply(webhooks)
    for item in webhooks:
        _wait_for_certificate(admin, f"{item['kind']}/{item['metadata']['name']}")


def _wait_for_certificate(admin: Kubectl, name: str) -> None:
    """Knative's webhook signs for itself and writes the signer where the API server reads it."""
    wait_until(
        lambda: all(item["clientConfig"].get("caBundle") for item in admin.get(name)["webhooks"]),
        what=f"{name} is reached",
    )


def _with_settings(item: dict[str, Any]) -> dict[str, Any]:
    if item["kind"] == "ConfigMap":
        item["data"] |= SETTINGS.get(item["metadata"]["name"], {})
    return item


def _shipped() -> Iterator[dict[str, Any]]:
    for path in _files():
        for item in yaml.safe_load_all(path.read_text()):
            if item:
                yield item


def _files() -> Iterable[Path]:
    """All manifests; the modules of two more hold what Knative's own has as links to them."""
    core = source_tree("knative-controller") / "config" / "core"
    yield from sorted(core.rglob("*.yaml"))
    for module in MANIFESTS:
        yield from sorted((source_tree(module) / "config").glob("*.yaml"))
