"""The autoscaler on a cluster: pods follow the demand, drain, scale to zero; other scalers win."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.load import load
from tests.kubernetes.models import Gateway, Tenant
from tests.kubernetes.places import IN_NAMESPACE
from tests.kubernetes.processes import signal_pod
from tests.kubernetes.scaling import AUTOSCALER, DEPLOYMENT, Autoscalers, Pool, rival
from tests.servers import wait_until

pytestmark = pytest.mark.kubernetes

PATIENT = "280s"
"""Long enough for a pod to start on a busy machine."""
LEFT_ALONE = "pilotlight_autoscaler_pods_left_alone"
WORK = ("many words " * 200,) * 16
"""Instances of a request that takes a pod longer than the request takes to reach it."""


@pytest.fixture(scope="module", autouse=True)
def quick(installed: Kubectl, gateway: Gateway) -> Iterator[None]:
    """An autoscaler that removes pods after seconds instead of minutes."""
    _set_environment(installed, "PILOTLIGHT_POD_STABLE=5", "PILOTLIGHT_POD_IDLE=5")
    yield
    Pool(installed).allow(1, 1)
    _set_environment(installed, "PILOTLIGHT_POD_STABLE-", "PILOTLIGHT_POD_IDLE-")


def _set_environment(kubectl: Kubectl, *changes: str) -> None:
    kubectl(*IN_NAMESPACE, "set", "env", AUTOSCALER, *changes)
    kubectl(*IN_NAMESPACE, "rollout", "status", AUTOSCALER, "--timeout=280s")


@pytest.fixture(autouse=True)
def one_pod(pool: Pool) -> Iterator[None]:
    """A pool with one pod before and after the test."""
    pool.allow(1, 1)
    pool.wait_ready(1)
    yield
    pool.allow(1, 1)


def test_demand_adds_a_pod_and_its_end_removes_one(
    pool: Pool, gateway: Gateway, tenant: Tenant
) -> None:
    tenant.declare("busy", queue_timeout=PATIENT)
    tenant.wait_ready("busy")
    pool.allow(1, 2)
    with load(gateway, tenant, "busy", clients=16, instances=WORK) as running:
        pool.wait_ready(2)
        running.wait_for_more(16)
    pool.wait_ready(1)
    assert running.broken == []  # an overloaded pod may reject requests, but responds
    assert "Scaled" in pool.reasons()
    assert gateway.predict(tenant, "busy").status_code == 200


def test_an_idle_pool_scales_to_zero_and_requests_start_one_pod_with_one_load(
    pool: Pool, gateway: Gateway, tenant: Tenant
) -> None:
    pool.delete_models()
    tenant.declare("sleeper", queue_timeout=PATIENT, deadline=PATIENT)
    tenant.wait_ready("sleeper")
    pool.allow(0, 4)
    pool.wait_ready(0)
    before = pool.created()
    with ThreadPoolExecutor(5) as clients:
        answers = list(clients.map(lambda _: gateway.predict(tenant, "sleeper"), range(5)))
    assert [answer.status_code for answer in answers] == [200] * 5
    pods = {answer.headers["x-pilotlight-pod"] for answer in answers}
    assert len(pods) == 1
    wait_until(lambda: pods <= pool.created(), what="an event says that the pod was made")
    assert pool.created() - before == pods


def test_a_horizontal_pod_autoscaler_of_the_deployment_takes_precedence(
    installed: Kubectl, pool: Pool, autoscalers: Autoscalers
) -> None:
    with rival(installed, least=2):
        wait_until(
            lambda: 1.0 in autoscalers.metrics(LEFT_ALONE, owner="rival").values(),
            what="the autoscaler leaves the pool alone",
        )
        pool.wait_wanted(2)  # more than the pool allows: the other scaler sets the number
        set_by_us = _calls(installed, "PATCH", "deployments", "scale")
        looks = _calls(installed, "LIST", "horizontalpodautoscalers")
        wait_until(
            lambda: _calls(installed, "LIST", "horizontalpodautoscalers") >= looks + 3,
            what="the autoscaler has looked again",
        )
        assert _calls(installed, "PATCH", "deployments", "scale") == set_by_us
        assert pool.wanted() == 2
        assert "ScalingLeftAlone" in pool.reasons()
    pool.wait_wanted(1)


def test_a_number_set_by_hand_is_reverted(installed: Kubectl, pool: Pool) -> None:
    pool.allow(1, 4)
    pool.wait_wanted(1)
    installed(*IN_NAMESPACE, "scale", DEPLOYMENT, "--replicas=3")
    pool.wait_wanted(1)


def test_another_autoscaler_takes_over_when_the_leader_hangs_or_is_killed(
    pool: Pool, autoscalers: Autoscalers
) -> None:
    autoscalers.run(2)
    wait_until(autoscalers.leader, what="an autoscaler leads")
    first = autoscalers.leader()
    assert signal_pod(first, signal.SIGSTOP)
    pool.allow(2, 2)
    pool.wait_wanted(2)
    signal_pod(first, signal.SIGKILL)  # unless its liveness probe restarted it first
    autoscalers.wait(2)
    pool.allow(1, 1)
    pool.wait_wanted(1)
    autoscalers.run(1)


def _calls(kubectl: Kubectl, verb: str, resource: str, subresource: str = "") -> float:
    """The number of such calls to the API server, for one namespace or object."""
    wanted = {"verb": verb, "resource": resource, "subresource": subresource}
    return sum(
        sample.value
        for family in text_string_to_metric_families(kubectl("get", "--raw", "/metrics"))
        if family.name == "apiserver_request"
        for sample in family.samples
        if wanted.items() <= sample.labels.items() and sample.labels["scope"] != "cluster"
    )
