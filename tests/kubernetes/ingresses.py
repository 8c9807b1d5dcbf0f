"""Replaces an ingress controller: `python -m tests.kubernetes.ingresses --kubeconfig FILE`.

Reports every Ingress of Knative as programmed, so that Routes become ready and old Revisions scale
to zero. There is no proxy: requests reach pods through Pilotlight's gateway.
"""

import argparse
import logging
import time
from collections.abc import Mapping
from typing import Any

from kubernetes import client, config, watch

from tests.kubernetes.node.container import timestamp
from tests.kubernetes.services import RETRY_S, TROUBLE

logger = logging.getLogger(__name__)

KIND = ("networking.internal.knative.dev", "v1alpha1", "ingresses")
BALANCER = {"ingress": [{"domainInternal": "nowhere.knative-serving.svc.cluster.local"}]}
CONDITIONS = ("LoadBalancerReady", "NetworkConfigured", "Ready")


def programmed(ingress: Mapping[str, Any]) -> dict[str, Any]:
    """The status of an ingress that is completely programmed."""
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": timestamp()} for kind in CONDITIONS
    ]
    return {
        "observedGeneration": ingress["metadata"]["generation"],
        "conditions": conditions,
        "publicLoadBalancer": BALANCER,
        "privateLoadBalancer": BALANCER,
    }


def _follow(objects: client.CustomObjectsApi) -> None:
    listing = objects.list_cluster_custom_object
    for event in watch.Watch().stream(listing, *KIND, timeout_seconds=600):
        ingress = event["object"]
        metadata = ingress["metadata"]
        seen = ingress.get("status", {}).get("observedGeneration")
        if event["type"] == "DELETED" or seen == metadata["generation"]:
            continue
        objects.patch_namespaced_custom_object_status(
            *KIND[:2],
            metadata["namespace"],
            KIND[2],
            metadata["name"],
            {"status": programmed(ingress)},
        )
        logger.info("%s/%s is programmed", metadata["namespace"], metadata["name"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    config.load_kube_config(arguments.kubeconfig)
    while True:
        try:
            _follow(client.CustomObjectsApi())
        except TROUBLE as error:
            logger.warning("watch: %s", error)
            time.sleep(RETRY_S)


if __name__ == "__main__":
    main()
