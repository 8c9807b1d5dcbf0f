"""The optional components of overlays: the real schemas accept them."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.kserve import PROGRAM
from tests.kubernetes.kubectl import Kubectl, kustomize
from tests.kubernetes.models import Gateway, Tenant
from tests.kubernetes.places import REPOSITORY, source_tree
from tests.kubernetes.suite import Cluster
from tests.servers import wait_until

logger = logging.getLogger(__name__)

pytestmark = pytest.mark.kubernetes

MANIFESTS = REPOSITORY / "manifests"
WEBHOOK = ("validatingwebhookconfiguration", "annotations.pilotlight.io")
SECRET = ("-n", "pilotlight", "secret", "pilotlight-webhook")


def _definitions(*names: str) -> list[dict[str, Any]]:
    """CRDs from KServe's tests, and cert-manager's if they are in Go's module cache."""
    folder = source_tree(PROGRAM) / "test" / "crds"
    files = [folder / name for name in names]
    cache = Path(os.environ.get("GOMODCACHE") or Path.home() / "go" / "pkg" / "mod")
    modules = sorted(cache.glob("github.com/cert-manager/cert-manager@*/deploy/crds"))
    for module in modules[-1:]:
        files += [module / "crd-certificates.yaml", module / "crd-issuers.yaml"]
    found = [item for file in files for item in yaml.safe_load_all(file.read_text())]
    for item in found:
        item["metadata"].pop("labels", None)  # cert-manager's CRDs are templates of a chart
    return found


@pytest.fixture(scope="module")
def kinds(installed: Kubectl, node: Cluster) -> frozenset[str]:
    """API groups of operators whose CRDs this cluster has, without the operators."""
    definitions = _definitions("gatewayapi_httproute.yaml")
    installed.apply(definitions)
    names = [f"crd/{item['metadata']['name']}" for item in definitions]
    installed.wait("condition=Established", *names)
    return frozenset(item["spec"]["group"] for item in definitions)


@pytest.mark.parametrize(
    ("component", "group"),
    [
        ("ingress", None),
        ("httproute", "gateway.networking.k8s.io"),
        ("cert-manager", "cert-manager.io"),
        ("api-keys", None),
        ("open", None),
        ("tokens", None),
        ("one-model", None),
        ("gpu without-kserve", None),
        ("gpu", None),
        ("gpu-mps", None),
        ("node-cache", None),
        ("node-cache node-memory", None),
        ("workflows", None),
        ("engine-mlserver", None),
        ("engine-triton", None),
        ("tls", "cert-manager.io"),
        ("workflows tls workflows-tls redis-tls", "cert-manager.io"),
    ],
)
def test_the_api_server_accepts_an_overlay_with_the_component(
    installed: Kubectl, kinds: frozenset[str], tmp_path: Path, component: str, group: str | None
) -> None:
    if group is not None and group not in kinds:
        pytest.skip(f"the kinds of {group} are not in Go's cache of modules")
    here = os.path.relpath(MANIFESTS, tmp_path.resolve())
    content = {
        "resources": [f"{here}/overlays/minimal"],
        "components": [f"{here}/components/{each}" for each in component.split()],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(content))
    objects = kustomize(tmp_path)
    for each in objects:
        if each["metadata"]["name"] == "pool-predictor":  # KServe's has another selector
            each["metadata"]["name"] = "pool-of-its-own"
    installed.apply(objects, "--dry-run=server", "--force-conflicts")


def _bundle(kubectl: Kubectl) -> str:
    webhook = kubectl.get(*WEBHOOK)["webhooks"][0]
    return str(webhook["clientConfig"].get("caBundle", ""))


def test_a_deleted_certificate_is_recreated_and_trusted(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    before = _bundle(installed)
    assert before
    installed("delete", *SECRET)
    installed(
        "patch",
        *WEBHOOK,
        "--type=json",
        "-p",
        '[{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]',
    )
    wait_until(
        lambda: _bundle(installed) not in ("", before), timeout_s=180, what="another caBundle"
    )
    tenant.declare_with_retry("after-the-loss")
    answer = tenant.try_declare("mistaken-after-the-loss", policy="fastest")
    assert "least-loaded" in answer.errors
