"""A node of the cluster: `python -m tests.kubernetes.node --kubeconfig FILE --folder FOLDER`.

Runs the pods that are scheduled to it as processes of this machine, each with its own network
namespace and address. Not supported: images, cgroups, other users than its own, storage claims,
`kubectl exec` and `kubectl logs` (logs are in the folder).
"""

import argparse
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

from kubernetes import config, watch

from tests.kubernetes.node.cluster import TROUBLE, Cluster
from tests.kubernetes.node.pod import Pod

logger = logging.getLogger(__name__)

LEASE_PERIOD_S = 5.0
RETRY_S = 0.5


class Agent:
    """Watches the pods of one node and runs a thread for each."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._pods: dict[str, Pod] = {}

    def run(self) -> None:
        """Register, then follow the pods until killed."""
        while True:
            try:
                self._cluster.register()
                break
            except TROUBLE as error:
                logger.warning("registering: %s", error)
                time.sleep(RETRY_S)
        threading.Thread(target=self._keep_alive, daemon=True).start()
        while True:
            try:
                self._follow()
            except TROUBLE as error:
                logger.warning("watch: %s", error)
                time.sleep(RETRY_S)

    def _keep_alive(self) -> None:
        while True:
            try:
                self._cluster.renew_lease()
                self._cluster.report_node()
            except TROUBLE as error:
                logger.warning("lease: %s", error)
            time.sleep(LEASE_PERIOD_S)

    def _follow(self) -> None:
        pods = self._cluster.core.list_pod_for_all_namespaces
        mine = f"spec.nodeName={self._cluster.node}"
        listed = json.loads(pods(field_selector=mine, _preload_content=False).data)
        for manifest in listed["items"]:
            self._note("ADDED", manifest)
        there = {manifest["metadata"]["uid"] for manifest in listed["items"]}
        for uid in self._pods.keys() - there:
            self._pods.pop(uid).end(0.0)
        events = watch.Watch().stream(
            pods,
            field_selector=mine,
            resource_version=listed["metadata"]["resourceVersion"],
            timeout_seconds=600,
        )
        for event in events:
            self._note(event["type"], event["raw_object"])

    def _note(self, kind: str, manifest: dict[str, Any]) -> None:
        metadata = manifest["metadata"]
        uid = str(metadata["uid"])
        pod = self._pods.get(uid)
        if pod is None and kind != "DELETED":
            pod = self._pods[uid] = Pod(manifest, self._cluster, self._folder)
            threading.Thread(target=pod.run, name=pod.name, daemon=True).start()
        if pod is None:
            return
        if kind == "DELETED":
            pod.end(0.0)
            del self._pods[uid]
        elif "deletionTimestamp" in metadata:
            pod.end(float(metadata.get("deletionGracePeriodSeconds", 30)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--node", default="node-1")
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # logs one line per probe
    config.load_kube_config(arguments.kubeconfig)
    Agent(Cluster(arguments.node, arguments.folder), arguments.folder / "pods").run()


if __name__ == "__main__":
    main()
