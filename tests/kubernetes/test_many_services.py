"""Many InferenceServices, most of them not ours: what they cost, and how soon models are ready.

A short run by default; the figures of docs/kubernetes.md are those of

    PILOTLIGHT_TEST_SERVICES=10000 make test-kubernetes FLAGS="-k others_services"
"""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from tests.kubernetes.audit import requests_by_account
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.models import Gateway, model_object
from tests.kubernetes.suite import Cluster
from tests.servers import wait_until

logger = logging.getLogger(__name__)

pytestmark = pytest.mark.kubernetes

SERVICES = int(os.environ.get("PILOTLIGHT_TEST_SERVICES", "300"))
OURS = SERVICES // 10
REST_S = 20.0 if SERVICES < 10_000 else 60.0
MAX_REQUESTS_PER_S = 5.0
WAIT_S = 1800.0
NAMESPACE = "many"
CREATED_AT_ONCE = 16
"""Requests: kubectl needs more CPU time for an object than all parts of the cluster together."""


@dataclass(frozen=True, slots=True)
class Controller:
    """The controller's process, and its requests to the API server."""

    process: Path
    """Its folder in /proc."""
    folder: Path
    """The control plane's."""

    def cpu_s(self) -> float:
        fields = (self.process / "stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        pages = int((self.process / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def requests(self) -> int:
        return requests_by_account(self.folder)["pilotlight-controller"]


@pytest.fixture
def controller(gateway: Gateway, node: Cluster) -> Controller:
    assert gateway.url
    assert node.plane is not None
    command = b"-m\0pilotlight\0controller\0"
    [process] = [
        each.parent for each in Path("/proc").glob("[0-9]*/cmdline") if command in each.read_bytes()
    ]
    return Controller(process, node.plane.folder)


@pytest.fixture
def namespace(installed: Kubectl) -> Iterator[str]:
    installed("create", "namespace", NAMESPACE)
    yield NAMESPACE
    installed("delete", "inferenceservices", "--all", "-n", NAMESPACE, "--wait=false")
    wait_until(
        lambda: not installed("get", "inferenceservices", "-n", NAMESPACE, "-o", "name"),
        timeout_s=WAIT_S,
        what="all InferenceServices are gone",
    )
    installed("delete", "namespace", NAMESPACE)


def test_others_services_cost_little_and_many_models_become_ready(
    installed: Kubectl, controller: Controller, namespace: str
) -> None:
    _log_rest(controller, "before")
    _create(installed, [_others_service(number) for number in range(SERVICES - OURS)])
    _assert_few_requests(controller, f"{SERVICES - OURS} services of others")

    began_s, cpu_s, requests = time.monotonic(), controller.cpu_s(), controller.requests()
    _create(installed, [model_object(namespace, f"model-{number}") for number in range(OURS)])
    created_s = time.monotonic() - began_s
    wait_until(
        lambda: _ready(installed).count("True") == OURS, timeout_s=WAIT_S, what="models are ready"
    )
    logger.info(
        "%d models: created in %.1f s, ready after %.1f s; controller: %.1f s of CPU, %d requests",
        OURS,
        created_s,
        time.monotonic() - began_s,
        controller.cpu_s() - cpu_s,
        controller.requests() - requests,
    )
    _assert_few_requests(controller, f"{OURS} models besides")


def _others_service(number: int) -> dict[str, Any]:
    """An InferenceService of ModelMesh: KServe makes nothing for it, and it names no pool."""
    found = model_object(NAMESPACE, f"other-{number}")
    found["metadata"]["annotations"] = {"serving.kserve.io/deploymentMode": "ModelMesh"}
    return found


def _create(kubectl: Kubectl, objects: Sequence[dict[str, Any]]) -> None:
    config.load_kube_config(str(kubectl.kubeconfig))
    create = client.CustomObjectsApi().create_namespaced_custom_object
    kind = ("serving.kserve.io", "v1beta1", NAMESPACE, "inferenceservices")
    with ThreadPoolExecutor(CREATED_AT_ONCE) as pool:
        list(pool.map(partial(create, *kind), objects))


def _ready(kubectl: Kubectl) -> str:
    """The status of Ready of each InferenceService that has one; names are left out."""
    path = "{.items[*].status.conditions[?(@.type=='Ready')].status}"
    return kubectl("get", "inferenceservices", "-n", NAMESPACE, "-o", f"jsonpath={path}")


def _assert_few_requests(controller: Controller, state: str) -> None:
    """Once nothing changes any more. Raises TimeoutError if it never comes to rest."""
    wait_until(
        lambda: _log_rest(controller, state) <= MAX_REQUESTS_PER_S,
        timeout_s=max(300.0, 5 * REST_S),
        what=f"the controller is at rest with {state}",
    )


def _log_rest(controller: Controller, state: str) -> float:
    """The controller's requests per second over `REST_S` without changes by us."""
    requests, cpu_s, began_s = controller.requests(), controller.cpu_s(), time.monotonic()
    time.sleep(REST_S)  # the length of a measurement, not a wait for a condition
    passed_s = time.monotonic() - began_s
    rate = (controller.requests() - requests) / passed_s
    logger.info(
        "%s: %.2f requests/s at rest, %.1f %% of a core, %.0f MB",
        state,
        rate,
        100 * (controller.cpu_s() - cpu_s) / passed_s,
        controller.memory_mb(),
    )
    return rate
