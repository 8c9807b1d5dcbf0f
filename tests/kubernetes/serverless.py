"""A pool in Knative mode beside the pool `default`, with its own gateway, from the manifests."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.kubectl import Kubectl, kustomize
from tests.kubernetes.models import Gateway
from tests.kubernetes.object_store import GRANT
from tests.kubernetes.places import IN_NAMESPACE, REPOSITORY
from tests.kubernetes.scaling import is_ready, redis_url
from tests.servers import wait_until

POOL = "serverless"
PREDICTOR = f"{POOL}-predictor"
GATEWAY = f"{POOL}-gateway"
OF_POOL = ("-l", f"pilotlight.io/pool={POOL}")
OF_GATEWAY = "app.kubernetes.io/name"
WINDOW = {"autoscaling.knative.dev/window": "6s"}
"""The shortest window that Knative accepts, so that a test needs less than a minute of load."""
LEAST, MOST = 2, 4
QUEUE_PROXY_PORT = 8012


def serverless_objects(folder: Path) -> list[dict[str, Any]]:
    """The pool and its gateway, from the overlay `minimal` with the component `knative`."""
    parts = {
        "resources": [_from(folder, "overlays/minimal")],
        "components": [_from(folder, "components/knative")],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(parts))
    made = {(item["kind"], item["metadata"]["name"]): item for item in kustomize(folder)}
    pool = made["InferenceService", "pool"]
    pool["metadata"]["name"] = POOL
    pool["metadata"]["labels"]["pilotlight.io/pool"] = POOL
    pool["metadata"]["annotations"] |= WINDOW
    predictor = pool["spec"]["predictor"]
    predictor |= {"minReplicas": LEAST, "maxReplicas": MOST}
    _name_pool(predictor["containers"][0])
    predictor["containers"][0]["env"] += [
        {"name": "PILOTLIGHT_ALLOW_SIMULATED_WORK", "value": "true"}
    ]
    gateway = made["Deployment", "pilotlight-gateway"]
    gateway["metadata"]["name"] = GATEWAY
    gateway["spec"]["selector"]["matchLabels"] = {OF_GATEWAY: GATEWAY}
    gateway["spec"]["template"]["metadata"]["labels"] = {OF_GATEWAY: GATEWAY}
    _name_pool(gateway["spec"]["template"]["spec"]["containers"][0])
    service = made["Service", "pilotlight-gateway"]
    service["metadata"]["name"] = GATEWAY
    service["spec"]["selector"] = {OF_GATEWAY: GATEWAY}
    tenants = made["ConfigMap", "everyone"]
    tenants["metadata"] |= {"name": f"{POOL}-tenants", "labels": {"pilotlight.io/tenant-of": POOL}}
    tenants["data"] |= GRANT
    return [pool, gateway, service, tenants]


def _from(folder: Path, name: str) -> str:
    return os.path.relpath(REPOSITORY / "manifests" / name, folder)


def _name_pool(container: dict[str, Any]) -> None:
    for item in container["env"]:
        if item["name"] == "PILOTLIGHT_POOL":
            item["value"] = POOL


@dataclass(frozen=True, slots=True)
class Serverless:
    """A pool that Knative runs, with ready pods."""

    kubectl: Kubectl
    gateway: Gateway
    objects: list[dict[str, Any]]

    def get(self, kind: str, name: str = PREDICTOR) -> dict[str, Any]:
        """An object in the pool's namespace."""
        return self.kubectl.get(*IN_NAMESPACE, kind, name)

    @property
    def revision(self) -> str:
        """The name of the newest ready Revision."""
        return str(
            self.get("configuration.serving.knative.dev")["status"]["latestReadyRevisionName"]
        )

    def wanted(self, revision: str = "") -> int:
        """The number of pods that Knative wants for a Revision, by default the newest."""
        status = self.get("podautoscaler", revision or self.revision)["status"]
        return int(status.get("desiredScale", -1))

    def pods(self) -> list[dict[str, Any]]:
        """The ready pods of the newest Revision that are not being deleted."""
        label = f"serving.knative.dev/revision={self.revision}"
        pods = self.kubectl.get(*IN_NAMESPACE, "pods", "-l", label)["items"]
        return [pod for pod in pods if is_ready(pod)]

    def wait_for_pods(self, count: int) -> None:
        """Wait until this number of pods is ready."""
        wait_until(lambda: len(self.pods()) == count, what=f"{count} pods of pool {POOL} are ready")

    def entered(self) -> dict[str, dict[str, Any]]:
        """The registered pods by name, from `pilotlight get pods`."""
        names_pool = ["--redis-url", redis_url(self.kubectl), "--pool", POOL]
        told = subprocess.run(
            [sys.executable, "-m", "pilotlight", "get", "pods", *names_pool, "--json"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return {pod["name"]: pod for pod in json.loads(told)}


def start_serverless(kubectl: Kubectl, folder: Path) -> Serverless:
    """Apply the pool and its gateway; returns when both are ready."""
    objects = serverless_objects(folder)
    kubectl.apply(objects)
    kubectl.wait("condition=Ready", *IN_NAMESPACE, f"configuration.serving.knative.dev/{PREDICTOR}")
    kubectl.wait("condition=Available", *IN_NAMESPACE, f"deployment/{GATEWAY}")
    service = kubectl.get(*IN_NAMESPACE, "service", GATEWAY)
    pool = Serverless(kubectl, Gateway(f"http://{service['spec']['clusterIP']}"), objects)
    pool.wait_for_pods(LEAST)
    return pool
