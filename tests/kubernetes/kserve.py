"""KServe's controller manager, with the CRDs, roles, webhooks and settings that KServe ships.

The manifests are those of the built version. Three things differ: the suite signs the webhooks'
certificate instead of cert-manager, the webhooks' address, and settings of an administrator.
"""

import base64
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.certificates import write_kubeconfig
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.kubectl import kustomize
from tests.kubernetes.places import API_URL, program, source_tree
from tests.servers import wait_until

NAMESPACE = "kserve"
ACCOUNT = "kserve-controller-manager"
WEBHOOK_PORT = 9443
HEALTH_PORT = 9081
PROGRAM = "kserve-controller"

SETTINGS: Mapping[str, Mapping[str, object]] = {
    "deploy": {"defaultDeploymentMode": "Standard"},
    "ingress": {"disableIstioVirtualHost": True, "disableIngressCreation": True},
}
"""Settings of an administrator of a cluster without Istio; all others are as shipped."""


def install_kserve(plane: ControlPlane) -> None:
    """Apply KServe's manifests and start its manager; returns when its webhooks respond."""
    objects = _shipped_objects()
    authority = base64.b64encode(plane.authority.certificate.read_bytes()).decode()
    for configuration in objects:
        for webhook in configuration.get("webhooks", []):
            webhook["clientConfig"] = _client_config(webhook["clientConfig"], authority)
    webhooks = [item for item in objects if "webhooks" in item]
    others = [item for item in objects if "webhooks" not in item]
    plane.admin.apply([_namespace(), *others, _settings()])
    definitions = [item for item in objects if item["kind"] == "CustomResourceDefinition"]
    names = [f"crd/{item['metadata']['name']}" for item in definitions]
    plane.admin.wait("condition=Established", *names)
    _start_manager(plane)
    plane.admin.apply(webhooks)


def _shipped_objects() -> list[dict[str, Any]]:
    """KServe's default installation without cert-manager's objects and without workloads.

    That of 0.16 has also presets of LLMInferenceServices, before their kind is established.
    """
    folder = source_tree(PROGRAM) / "config" / "default"
    left_out = {"Certificate", "Issuer", "Deployment", "DaemonSet", "LLMInferenceServiceConfig"}
    return [item for item in kustomize(folder) if item["kind"] not in left_out]


def _namespace() -> dict[str, Any]:
    # The label excludes KServe's own namespace from its webhook for pods.
    labels = {"control-plane": ACCOUNT}
    metadata = {"name": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def _client_config(shipped: Mapping[str, Any], authority: str) -> dict[str, str]:
    path = shipped["service"]["path"]
    return {"url": f"https://127.0.0.1:{WEBHOOK_PORT}{path}", "caBundle": authority}


def _settings() -> dict[str, Any]:
    path = source_tree(PROGRAM) / "config" / "configmap" / "inferenceservice.yaml"
    shipped: dict[str, Any] = yaml.safe_load(path.read_text())
    for key, values in SETTINGS.items():
        shipped["data"][key] = json.dumps({**json.loads(shipped["data"][key]), **values})
    shipped["metadata"]["namespace"] = NAMESPACE
    return shipped


def _start_manager(plane: ControlPlane) -> None:
    # The manager reads the certificate from a fixed folder in TMPDIR.
    temporary = plane.folder / "kserve"
    served = temporary / "k8s-webhook-server" / "serving-certs"
    served.mkdir(parents=True)
    pair = plane.authority.server("kserve-webhook", alternatives=["127.0.0.1", "localhost"])
    shutil.copy(pair.certificate, served / "tls.crt")
    shutil.copy(pair.key, served / "tls.key")
    kubeconfig = account_kubeconfig(plane, NAMESPACE, ACCOUNT)
    plane.run(
        PROGRAM,
        [
            str(program(PROGRAM)),
            "--metrics-addr=0",
            f"--health-probe-addr=127.0.0.1:{HEALTH_PORT}",
            f"--webhook-port={WEBHOOK_PORT}",
        ],
        KUBECONFIG=str(kubeconfig),
        POD_NAMESPACE=NAMESPACE,
        TMPDIR=str(temporary),
    )
    wait_for_manager(plane)


def wait_for_manager(plane: ControlPlane) -> None:
    """Wait until KServe's manager and its webhooks are ready."""
    plane.wait("KServe's manager ready", f"http://127.0.0.1:{HEALTH_PORT}/readyz")


def account_kubeconfig(plane: ControlPlane, namespace: str, account: str) -> Path:
    """A kubeconfig file with a token of a service account."""
    wait_until(
        lambda: plane.admin.answer("-n", namespace, "get", "serviceaccount", account).is_ok,
        what=f"service account {namespace}/{account}",
    )
    token = plane.admin("-n", namespace, "create", "token", account, "--duration=6h").strip()
    return write_kubeconfig(
        plane.folder / f"{namespace}-{account}.kubeconfig",
        url=API_URL,
        authority=plane.authority.certificate,
        credentials={"token": token},
    )
