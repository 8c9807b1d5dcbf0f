"""Knative Serving from the manifests of its authors, with its programs as pods of the cluster.

Kinds and settings are installed at the start, because KServe's manager looks for them once; the
programs start when a test needs them. Only settings of an administrator differ. `ingresses.py`
replaces the ingress controller.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.places import builds, program, source_tree
from tests.servers import wait_until

NAMESPACE = "knative-serving"
IN_KNATIVE = ("-n", NAMESPACE)
MANIFESTS = ("knative-networking", "knative-caching")
"""Modules that are unpacked and not built."""
KIND = "CustomResourceDefinition"
PROGRAMS = ("Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget")

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "config-deployment": {"registries-skipping-tag-resolving": "registry.invalid"},
    "config-network": {"ingress-class": "tests.ingress.networking.knative.dev"},
    "config-features": {"kubernetes.podspec-fieldref": "enabled"},
}
"""Settings of an administrator: the images have no registry, and pods report their own address."""


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
    """Install everything that Knative ships except its programs and their webhooks."""
    objects = [
        item for item in _shipped() if item["kind"] not in PROGRAMS and "webhooks" not in item
    ]
    kinds = [item for item in objects if item["kind"] == KIND]
    admin.apply(kinds)
    admin.wait("condition=Established", *(f"crd/{item['metadata']['name']}" for item in kinds))
    others = [_with_settings(item) for item in objects if item["kind"] != KIND]
    admin.apply(sorted(others, key=lambda item: item["kind"] != "Namespace"))


def start_knative(plane: ControlPlane) -> None:
    """Start Knative's programs; returns when they and their webhooks respond."""
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
    """Knative's webhook signs its certificate, and writes the signer to the webhook's object."""
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
    """All manifests; Knative's own are links to those of two other modules."""
    core = source_tree("knative-controller") / "config" / "core"
    yield from sorted(core.rglob("*.yaml"))
    for module in MANIFESTS:
        yield from sorted((source_tree(module) / "config").glob("*.yaml"))
