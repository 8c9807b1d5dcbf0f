"""The number of a pool's pods: the autoscaler, the pool's bounds, `pilotlight scale`."""

import base64
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from controller.resources import POOL
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.places import IN_NAMESPACE, NAMESPACE, REPOSITORY
from tests.servers import wait_until

AUTOSCALER = "deployment/pilotlight-autoscaler"
ACCOUNT = "pilotlight-autoscaler"
OF_AUTOSCALER = "app.kubernetes.io/name=pilotlight-autoscaler"
OF_POOL = "serving.kserve.io/inferenceservice=pool"
DEPLOYMENT = "deployment/pool-predictor"
PORT = 8080


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is ready and is not being deleted."""
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
    return "deletionTimestamp" not in pod["metadata"] and conditions.get("Ready") == "True"


def redis_url(kubectl: Kubectl, role: str = "controller") -> str:
    """Of the role's user, with its newest password."""
    service = kubectl.get(*IN_NAMESPACE, "service", "pilotlight-redis")
    passwords = kubectl.get(*IN_NAMESPACE, "secret", "pilotlight-redis")["data"][role]
    password = base64.b64decode(passwords).decode().split()[-1]
    return f"redis://{role}:{password}@{service['spec']['clusterIP']}:6379"


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool of `manifests/base`, with administrator rights."""

    kubectl: Kubectl

    def allow(self, least: int, most: int) -> None:
        """Set minReplicas and maxReplicas."""
        patch = f'{{"spec": {{"predictor": {{"minReplicas": {least}, "maxReplicas": {most}}}}}}}'
        self.kubectl(*IN_NAMESPACE, "patch", "isvc", "pool", "--type=merge", "-p", patch)

    def delete_models(self) -> None:
        """Delete all models, so that no requests are forecast."""
        for item in self.kubectl.get("isvc", "-A")["items"]:
            metadata = item["metadata"]
            if POOL in metadata.get("annotations", {}):
                self.kubectl("-n", metadata["namespace"], "delete", "isvc", metadata["name"])

    def wanted(self) -> int:
        """The number of replicas in the specification of its Deployment."""
        found = self.kubectl.get(*IN_NAMESPACE, "deployment", "pool-predictor")
        return int(found["spec"]["replicas"])

    def wait_wanted(self, pods: int) -> None:
        wait_until(lambda: self.wanted() == pods, what=f"{pods} are wanted")

    def wait_ready(self, pods: int) -> None:
        """Return when exactly this number of pods exists and all are ready."""
        wait_until(lambda: self._readiness() == [True] * pods, what=f"{pods} pods are ready")

    def _readiness(self) -> list[bool]:
        pods = self.kubectl.get(*IN_NAMESPACE, "pods", "-l", OF_POOL)["items"]
        return [is_ready(pod) for pod in pods]

    def reasons(self) -> set[str]:
        """Reasons of the events about the pool."""
        return {event["reason"] for event in self._events("involvedObject.name=pool")}

    def has_event(self, words: str) -> bool:
        """Whether an event about the pool contains this text."""
        events = self._events("involvedObject.name=pool")
        return any(words in event["message"] for event in events)

    def created(self) -> set[str]:
        """Names of all pods that were ever created for the pool."""
        events = self._events("reason=SuccessfulCreate")
        names = {event["message"].removeprefix("Created pod: ") for event in events}
        return {name for name in names if name.startswith("pool-predictor-")}

    def _events(self, selector: str) -> list[dict[str, Any]]:
        found = self.kubectl.get(*IN_NAMESPACE, "events", f"--field-selector={selector}")
        return list(found["items"])


@dataclass(frozen=True, slots=True)
class Autoscalers:
    """The Deployment of the autoscaler."""

    kubectl: Kubectl

    def run(self, replicas: int) -> None:
        """Scale the Deployment and wait for its pods."""
        self.kubectl(*IN_NAMESPACE, "scale", AUTOSCALER, f"--replicas={replicas}")
        self.wait(replicas)

    def wait(self, replicas: int) -> None:
        """Return when exactly this number of pods exists and all of them respond."""
        wait_until(
            lambda: (
                len(self.metrics("pilotlight_autoscaler_is_leader")) == replicas
                and len(self._pods()) == replicas
            ),
            what=f"{replicas} autoscalers are there",
        )

    def leader(self) -> str:
        """The name of the leading pod; empty without a leader."""
        leads = self.metrics("pilotlight_autoscaler_is_leader")
        return next((pod for pod, value in sorted(leads.items()) if value), "")

    def metrics(self, name: str, **labels: str) -> dict[str, float]:
        """The value of a metric by pod, of all pods that respond."""
        found = {}
        for pod in self._pods():
            address = pod["status"].get("podIP")
            try:
                text = httpx.get(
                    f"http://{address}:{PORT}/metrics", trust_env=False, timeout=60
                ).text
            except httpx.HTTPError:
                continue
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name == name and labels.items() <= sample.labels.items():
                        found[pod["metadata"]["name"]] = sample.value
        return found

    def _pods(self) -> list[dict[str, Any]]:
        return list(self.kubectl.get(*IN_NAMESPACE, "pods", "-l", OF_AUTOSCALER)["items"])


class Scaler:
    """`pilotlight scale` with the rights of the autoscaler, for pools by name."""

    def __init__(self, kubectl: Kubectl, folder: Path) -> None:
        account = kubectl.as_account(NAMESPACE, ACCOUNT, folder)
        self._environment = {**os.environ, "KUBECONFIG": str(account.kubeconfig)}
        self._redis = redis_url(kubectl)

    def __call__(self, pods: int, *, pool: str = "default") -> subprocess.CompletedProcess[str]:
        scale = ["scale", pool, "--pods", str(pods), *IN_NAMESPACE, "--redis-url", self._redis]
        return subprocess.run(
            [sys.executable, "-m", "pilotlight", *scale],
            cwd=REPOSITORY,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )


@contextlib.contextmanager
def rival(kubectl: Kubectl, *, least: int = 1) -> Iterator[None]:
    """A HorizontalPodAutoscaler of another owner for the pool's Deployment."""
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "pool-predictor"}
    rival = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "rival", "namespace": NAMESPACE},
        "spec": {"scaleTargetRef": target, "minReplicas": least, "maxReplicas": 3},
    }
    kubectl.apply([rival])
    try:
        yield
    finally:
        kubectl(*IN_NAMESPACE, "delete", "hpa", "rival")
