"""The manifests of the repository: the real schemas accept them, and the samples work."""

import base64
import io
from typing import Any

import pytest
from PIL import Image

from tests.kubernetes.kubectl import APPLY, Kubectl, kustomize
from tests.kubernetes.models import Gateway, Tenant
from tests.kubernetes.places import REPOSITORY

pytestmark = pytest.mark.kubernetes

MANIFESTS = REPOSITORY / "manifests"
NOT_HERE = ("monitoring.coreos.com/", "cert-manager.io/")
"""Kinds of operators that this cluster does not run, which are not checked."""


def _picture() -> dict[str, Any]:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), "green").save(file, "PNG")
    return {"image_bytes": {"b64": base64.b64encode(file.getvalue()).decode()}}


@pytest.mark.parametrize("overlay", ["minimal", "production"])
def test_the_api_server_accepts_all_objects_of_an_overlay(installed: Kubectl, overlay: str) -> None:
    made = kustomize(MANIFESTS / "overlays" / overlay)
    objects = [item for item in made if not item["apiVersion"].startswith(NOT_HERE)]
    installed.apply(objects, "--dry-run=server", "--force-conflicts")


def test_the_samples_become_ready_and_serve(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    installed(*APPLY, "-n", tenant.namespace, "-f", str(MANIFESTS / "samples"))
    for name, instance in (
        ("translate", "quick brown fox jumps over"),
        ("embed", "a cat sat down"),
        ("classify-image", _picture()),
    ):
        tenant.wait_ready(name)
        answer = gateway.predict(tenant, name, instance)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["predictions"]) == 1


def test_the_samples_for_clusters_become_ready(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    for name in ("tuned", "canary"):
        path = MANIFESTS / "samples" / "kubernetes" / f"{name}.yaml"
        installed(*APPLY, "-n", tenant.namespace, "-f", str(path))
    for name in ("translate-tuned", "translate-canary"):
        tenant.wait_ready(name)
        answer = gateway.predict(tenant, name, "quick brown fox jumps over")
        assert answer.status_code == 200, answer.text
