"""The last of the tests: what an untested KServe makes the status say, and a cluster without it."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.kserve import NAMESPACE as KSERVE
from tests.kubernetes.kserve import PROGRAM
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.models import Gateway, Tenant
from tests.kubernetes.object_store import overlay_with_grant
from tests.kubernetes.places import IN_NAMESPACE, REPOSITORY
from tests.kubernetes.suite import Cluster
from tests.kubernetes.test_own_models import own_model
from tests.servers import wait_until

pytestmark = pytest.mark.kubernetes

MANAGER = "kserve-controller-manager"


def _restart_controller(kubectl: Kubectl) -> None:
    of_controller = "app.kubernetes.io/name=pilotlight-controller"
    kubectl("delete", *IN_NAMESPACE, "pods", "-l", of_controller)
    kubectl("rollout", "status", *IN_NAMESPACE, "deployment/pilotlight-controller")


def test_an_untested_kserve_is_in_the_status(
    node: Cluster, installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    labels = {"control-plane": MANAGER}
    container = {"name": "manager", "image": "kserve/kserve-controller:v0.99.0"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": MANAGER, "namespace": KSERVE, "labels": labels},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    installed.apply([deployment])
    tenant.declare("versioned")
    _restart_controller(installed)
    tenant.wait_ready("versioned")

    def message() -> str:
        conditions = tenant.status("versioned")["conditions"]
        return next(str(each["message"]) for each in conditions if each["type"] == "Ready")

    wait_until(lambda: "KServe 0.99 is not tested" in message(), what="the version is named")


def test_models_are_served_and_pods_scaled_without_kserve(
    node: Cluster, installed: Kubectl, gateway: Gateway, tenant: Tenant, tmp_path: Path
) -> None:
    assert node.plane is not None
    installed("delete", "inferenceservices", "-A", "--all", "--timeout=300s")
    installed.wait("delete", *IN_NAMESPACE, "deployment/pool-predictor")
    node.plane.stop(PROGRAM)
    for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations"):
        names = installed("get", kind, "-o", "name").split()
        installed("delete", *(each for each in names if "kserve" in each))
    definitions = installed("get", "crd", "-o", "name").split()
    installed("delete", *(each for each in definitions if each.endswith(".serving.kserve.io")))
    installed.apply(_objects(tmp_path), "--force-conflicts")  # others have scaled
    _restart_controller(installed)
    tenant.kubectl.apply([own_model(tenant, "alone")])
    where = ("-n", tenant.namespace, "model.pilotlight.io/alone")
    tenant.kubectl.wait("condition=Ready", *where)
    answer = gateway.predict(tenant, "alone")
    assert answer.status_code == 200, answer.text
    installed(
        *("annotate", *IN_NAMESPACE, "deployment/pool-predictor", "--overwrite"),
        "pilotlight.io/min-replicas=2",
    )
    installed.wait("jsonpath={.status.readyReplicas}=2", *IN_NAMESPACE, "deployment/pool-predictor")


def _objects(folder: Path) -> list[dict[str, Any]]:
    """Of the smallest overlay with the component, without what would need KServe."""
    here = os.path.relpath(REPOSITORY / "manifests", folder.resolve())
    content = {
        "resources": [f"{here}/overlays/minimal"],
        "components": [f"{here}/components/without-kserve"],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return overlay_with_grant(folder)
