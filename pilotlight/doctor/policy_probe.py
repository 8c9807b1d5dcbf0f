"""Finds out by trying whether network policies are enforced.

A pod in another namespace connects to the gateway, which everyone may, and to Redis and a pod of a
pool, which nobody there may. It is deleted however the attempt ends, and ends by itself.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from kubernetes.aio import client

from controller.api import Denied, path_of, read_json, request
from controller.resources import Kind
from pilotlight.doctor import Finding, ok, problem, unknown
from pilotlight.doctor.cluster_facts import ClusterFacts, Document

NAMESPACE: Final = "default"
POD_TIMEOUT_S: Final = 90
"""For its start, which may pull the image, and three connections of up to three seconds."""
POLL_INTERVAL_S: Final = 0.5
_SUBJECT: Final = "network policies"
_GATEWAY: Final = "the gateway"
_CONNECT: Final = """
import socket, sys
reached = 0
for number, target in enumerate(sys.argv[1:], 1):
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
    except OSError:
        continue
    reached |= 1 << number
sys.exit(reached)
"""
"""Its exit status has a bit for each reached target; 1 is that of an error of Python's."""


async def try_policies(api: client.ApiClient, facts: ClusterFacts) -> list[Finding]:
    """Nothing where nothing is installed that a policy protects. Raises KubernetesError."""
    targets = _targets(facts)
    if _GATEWAY not in targets or len(targets) == 1 or not facts.items("network_policies"):
        return []
    try:
        status = await _run(api, _pod(facts, list(targets.values())))
    except (Denied, TimeoutError) as error:
        return [_not_tried(str(error))]
    return [judge([name for bit, name in enumerate(targets, 1) if status & 1 << bit])]


def judge(reached: Sequence[str]) -> Finding:
    """By the names of what the pod could connect to."""
    forbidden = [each for each in reached if each != _GATEWAY]
    if forbidden:
        return problem(
            _SUBJECT,
            f"are not enforced: a pod of namespace {NAMESPACE} reached {' and '.join(forbidden)}",
            "install or switch on a network plugin that enforces NetworkPolicies (Calico, Cilium;"
            " Amazon's VPC CNI: enableNetworkPolicy)",
        )
    if not reached:
        return _not_tried("the pod reached not even the gateway")
    return ok(_SUBJECT, "are enforced: a pod of another namespace was refused")


def _not_tried(reason: str) -> Finding:
    remedy = f"mend that, try as a user who may create pods in namespace {NAMESPACE}, or --no-probe"
    return unknown(_SUBJECT, f"whether they are enforced was not found out: {reason}", remedy)


def _targets(facts: ClusterFacts) -> dict[str, str]:
    """Address and port by name."""
    services = {each["metadata"]["name"]: each["spec"] for each in facts.items("platform_services")}
    addresses = [each["status"].get("podIP") for each in facts.items("pods")]
    found = {
        _GATEWAY: (services.get("pilotlight-gateway", {}).get("clusterIP"), 80),
        "Redis": (services.get("pilotlight-redis", {}).get("clusterIP"), 6379),
        "a pod of a pool": (next(filter(None, addresses), None), 8080),
    }
    return {name: f"{host}:{port}" for name, (host, port) in found.items() if host}


def _pod(facts: ClusterFacts, targets: list[str]) -> Document:
    """With the gateway's image and security contexts, which the cluster's rules admit."""
    [gateway] = [
        each["spec"]["template"]["spec"]
        for each in facts.items("deployments")
        if each["metadata"]["namespace"] == facts.namespace
        and each["metadata"]["name"] == "pilotlight-gateway"
    ]
    container = gateway["containers"][0]
    probe = {"name": "probe", "command": ["python", "-c", _CONNECT, *targets]}
    probe |= {key: container.get(key) for key in ("image", "securityContext")}
    annotations = {"sidecar.istio.io/inject": "false"}
    return {
        "metadata": {"generateName": "pilotlight-doctor-", "annotations": annotations},
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": POD_TIMEOUT_S,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [probe],
            **{key: gateway.get(key) for key in ("securityContext", "imagePullSecrets")},
        },
    }


async def _run(api: client.ApiClient, pod: Document) -> int:
    """The exit status of the pod's container, once the pod is deleted. Raises TimeoutError."""
    pods, subject = path_of(Kind.POD, NAMESPACE), f"a pod in namespace {NAMESPACE}"
    made = await request(api, "POST", pods, subject, pod)
    path = f"{pods}/{made['metadata']['name']}"
    try:
        for _ in range(round(POD_TIMEOUT_S / POLL_INTERVAL_S)):
            found = await read_json(api, path)
            for each in found["status"].get("containerStatuses") or ():
                if (ended := each["state"].get("terminated")) is not None:
                    return int(ended["exitCode"])
            await asyncio.sleep(POLL_INTERVAL_S)
        raise TimeoutError(f"{path} did not end in {POD_TIMEOUT_S} s")
    finally:
        await request(api, "DELETE", path, "the pod")
