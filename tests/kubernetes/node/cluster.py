"""The node's calls to the API server, with the rights of a kubelet."""

import base64
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubernetes import client
from urllib3.exceptions import HTTPError

from tests.kubernetes.node.container import timestamp
from tests.kubernetes.places import HOST_ADDRESS, cache_folder

logger = logging.getLogger(__name__)

LEASE_NAMESPACE = "kube-node-lease"
LEASE_S = 40
RETRY_S = 0.5
CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}
TROUBLE = (client.ApiException, HTTPError, OSError)
ALL_GOOD = "the node agent of the tests is well"


class Cluster:
    """A client of the API server, safe to call from any thread."""

    def __init__(self, node: str, folder: Path) -> None:
        self.node = node
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.bytecode = cache_folder() / "byte-code"
        self.bytecode.mkdir(parents=True, exist_ok=True)
        self._hosts = folder.parent / "hosts"
        self.core = client.CoreV1Api()
        self._leases = client.CoordinationV1Api()

    def hosts_file(self, namespace: str) -> Path:
        """Host names for the pods of a namespace; written by `tests.kubernetes.services`."""
        path = self._hosts / namespace
        path.touch()
        return path

    def register(self) -> None:
        """Create the node, ready, with its lease."""
        labels = {"kubernetes.io/hostname": self.node, "kubernetes.io/os": "linux"}
        node = {"metadata": {"name": self.node, "labels": labels}}
        try:
            self.core.create_node(node)
        except client.ApiException as error:
            if error.status != 409:
                raise
        self.renew_lease()
        self.report_node()

    def report_node(self) -> None:
        now = timestamp()
        conditions = [
            {"type": kind, "status": status, "reason": "Agent", "message": ALL_GOOD}
            | {"lastHeartbeatTime": now, "lastTransitionTime": now}
            for kind, status in (
                ("Ready", "True"),
                ("MemoryPressure", "False"),
                ("DiskPressure", "False"),
                ("PIDPressure", "False"),
            )
        ]
        status = {
            "capacity": CAPACITY,
            "allocatable": CAPACITY,
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": HOST_ADDRESS}],
        }
        self.core.patch_node_status(self.node, {"status": status})

    def renew_lease(self) -> None:
        # The client library drops a fraction of zero, but the API server requires a fraction.
        now = timestamp().replace("Z", ".000001Z")
        spec = {"holderIdentity": self.node, "leaseDurationSeconds": LEASE_S, "renewTime": now}
        try:
            self._leases.patch_namespaced_lease(self.node, LEASE_NAMESPACE, {"spec": spec})
        except client.ApiException as error:
            if error.status != 404:
                raise
            body = {"metadata": {"name": self.node}, "spec": spec}
            self._leases.create_namespaced_lease(LEASE_NAMESPACE, body)

    def entries(self, kind: str, namespace: str, name: str) -> Mapping[str, str] | None:
        """The contents of a ConfigMap or Secret as text; None if it does not exist."""
        read = {
            "ConfigMap": self.core.read_namespaced_config_map,
            "Secret": self.core.read_namespaced_secret,
        }[kind]
        try:
            found = json.loads(read(name, namespace, _preload_content=False).data)
        except client.ApiException as error:
            if error.status in {403, 404}:  # the right follows the pod with a delay
                return None
            raise
        data = found.get("data") or {}
        if kind == "ConfigMap":
            return dict(data)
        return {key: base64.b64decode(text).decode() for key, text in data.items()}

    def token(self, pod: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
        """A token of the pod's service account, bound to the pod."""
        metadata = pod["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"]}
        spec = {
            "audiences": [spec["audience"]] if spec.get("audience") else [],
            "expirationSeconds": max(7200, spec.get("expirationSeconds", 0)),
            "boundObjectRef": {**bound, "uid": metadata["uid"]},
        }
        account = pod["spec"].get("serviceAccountName", "default")
        answer = self.core.create_namespaced_service_account_token(
            account, metadata["namespace"], {"spec": spec}
        )
        return str(answer.status.token)

    def patch_status(self, pod: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
        """Write a pod's status; False if it failed and must be retried."""
        metadata = pod["metadata"]
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        try:
            self.core.patch_namespaced_pod_status(
                metadata["name"], metadata["namespace"], body, _preload_content=False
            )
        except client.ApiException as error:
            if error.status in {404, 409}:
                return True  # the pod is deleted, or another has its name
            logger.warning("status of %s: %s", metadata["name"], error)
            return False
        except (OSError, HTTPError) as error:
            logger.warning("status of %s: %s", metadata["name"], error)
            return False
        return True

    def delete(self, pod: Mapping[str, Any]) -> None:
        """Confirm that a pod has ended, so that the API server deletes it."""
        metadata = pod["metadata"]
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        while True:
            try:
                self.core.delete_namespaced_pod(metadata["name"], metadata["namespace"], body=body)
                return
            except TROUBLE as error:
                logger.warning("deleting %s: %s", metadata["name"], error)
            time.sleep(RETRY_S)
            if not self._is_there(metadata):  # an API server that has just started says so wrongly
                return

    def _is_there(self, metadata: Mapping[str, Any]) -> bool:
        try:
            found = self.core.read_namespaced_pod(metadata["name"], metadata["namespace"])
        except client.ApiException as error:
            return bool(error.status != 404)
        except TROUBLE:
            return True
        return bool(found.metadata.uid == metadata["uid"])
