"""The number of a pool's pods: set by us through the scale subresource, left alone by KServe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kubernetes.kserve import PROGRAM, wait_for_manager
from tests.kubernetes.places import IN_NAMESPACE, NAMESPACE
from tests.servers import wait_until

if TYPE_CHECKING:
    from tests.kubernetes.kubectl import Kubectl
    from tests.kubernetes.scaling import Scaler
    from tests.kubernetes.suite import Cluster

pytestmark = pytest.mark.kubernetes

DEPLOYMENT = "deployment/pool-predictor"
RECONCILED = "deployment reconcile"
"""What KServe's manager logs whenever it has compared a Deployment with what it wants."""


def test_kserve_leaves_our_number_of_pods_alone(
    installed: Kubectl, scale: Scaler, node: Cluster
) -> None:
    assert node.plane is not None
    done = scale(2)
    assert done.returncode == 0, done.stdout + done.stderr
    installed.wait("jsonpath={.status.readyReplicas}=2", *IN_NAMESPACE, DEPLOYMENT, timeout_s=240)
    manager = node.plane.programs[PROGRAM]
    seen = manager.log.read_text().count(RECONCILED)
    manager.kill()
    manager.start()
    wait_for_manager(node.plane)
    wait_until(
        lambda: manager.log.read_text().count(RECONCILED) > seen, what="KServe has reconciled"
    )
    assert _wanted(installed) == 2
    assert scale(1).returncode == 0
    installed.wait("jsonpath={.status.replicas}=1", *IN_NAMESPACE, DEPLOYMENT)


def test_scales_to_no_more_than_the_pool_allows(installed: Kubectl, scale: Scaler) -> None:
    _set_most(installed, 1)
    try:
        done = scale(5)
    finally:
        _set_most(installed, 8)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "maxReplicas 1" in done.stdout
    assert _wanted(installed) == 1


def test_leaves_a_pool_to_another_autoscaler_and_names_it(
    installed: Kubectl, scale: Scaler
) -> None:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "pool-predictor"}
    rival = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "rival", "namespace": NAMESPACE},
        "spec": {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 3},
    }
    installed.apply([rival])
    try:
        done = scale(2)
    finally:
        installed(*IN_NAMESPACE, "delete", "hpa", "rival")
    assert done.returncode != 0
    assert "HorizontalPodAutoscaler rival" in done.stdout + done.stderr
    assert _wanted(installed) == 1


def _wanted(kubectl: Kubectl) -> int:
    return int(kubectl.get(*IN_NAMESPACE, "deployment", "pool-predictor")["spec"]["replicas"])


def _set_most(kubectl: Kubectl, pods: int) -> None:
    patch = f'{{"spec": {{"predictor": {{"maxReplicas": {pods}}}}}}}'
    kubectl(*IN_NAMESPACE, "patch", "isvc", "pool", "--type=merge", "-p", patch)
