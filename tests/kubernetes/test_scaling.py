"""The number of a pool's pods set by hand, through the scale subresource; KServe keeps it."""

from collections.abc import Iterator

import pytest

from tests.kubernetes.kserve import PROGRAM, wait_for_manager
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.places import IN_NAMESPACE
from tests.kubernetes.scaling import DEPLOYMENT, Autoscalers, Pool, Scaler, rival
from tests.kubernetes.suite import Cluster
from tests.servers import wait_until

pytestmark = pytest.mark.kubernetes

RECONCILED = "deployment reconcile"
"""KServe's manager logs this after each comparison of a Deployment with its specification."""


def test_is_rejected_while_an_autoscaler_leads(scale: Scaler, autoscalers: Autoscalers) -> None:
    wait_until(autoscalers.leader, what="an autoscaler leads")
    done = scale(1)
    assert done.returncode != 0
    assert "minReplicas" in done.stdout + done.stderr


@pytest.fixture
def by_hand(pool: Pool, autoscalers: Autoscalers) -> Iterator[Pool]:
    """A pool with one pod, without an autoscaler, and with bounds of its own."""
    autoscalers.run(0)
    pool.allow(0, 8)
    yield pool
    pool.allow(1, 1)
    autoscalers.run(1)
    pool.wait_wanted(1)


def test_kserve_keeps_the_number_of_pods(
    installed: Kubectl, by_hand: Pool, scale: Scaler, node: Cluster
) -> None:
    assert node.plane is not None
    done = scale(2)
    assert done.returncode == 0, done.stdout + done.stderr
    installed.wait("jsonpath={.status.readyReplicas}=2", *IN_NAMESPACE, DEPLOYMENT)
    manager = node.plane.programs[PROGRAM]
    seen = manager.log.read_text().count(RECONCILED)
    manager.kill()
    manager.start()
    wait_for_manager(node.plane)
    wait_until(
        lambda: manager.log.read_text().count(RECONCILED) > seen, what="KServe has reconciled"
    )
    assert by_hand.wanted() == 2
    assert scale(1).returncode == 0
    installed.wait("jsonpath={.status.replicas}=1", *IN_NAMESPACE, DEPLOYMENT)


def test_scales_only_within_the_bounds_of_the_pool(by_hand: Pool, scale: Scaler) -> None:
    by_hand.allow(0, 1)
    done = scale(5)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "maxReplicas 1" in done.stdout
    assert by_hand.wanted() == 1


def test_leaves_a_pool_to_another_scaler_and_names_it(
    installed: Kubectl, by_hand: Pool, scale: Scaler
) -> None:
    with rival(installed):
        done = scale(2)
    assert done.returncode != 0
    assert "HorizontalPodAutoscaler rival" in done.stdout + done.stderr
    assert by_hand.wanted() == 1
