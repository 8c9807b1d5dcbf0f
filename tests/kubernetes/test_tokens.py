"""Tokens of service accounts, as `kubectl create token` makes them, at the gateway's Service."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from tests.kubernetes.certificates import write_key
from tests.kubernetes.kubectl import Kubectl, kustomize
from tests.kubernetes.models import CALL_TIMEOUT_S, Gateway, Tenant, token
from tests.kubernetes.places import API_URL, IN_NAMESPACE, NAMESPACE, REPOSITORY
from tests.kubernetes.suite import Cluster
from tests.servers import wait_until

pytestmark = pytest.mark.kubernetes

MODEL = "guarded"
PATH = f"/serving/tenant/{MODEL}/v1/models/{MODEL}:predict"
OPERATOR = "pilotlight-operator"
ROTATION_S = 240.0
"""The controller reads the keys every minute; a kubelet updates what pods mount."""


@pytest.fixture(scope="module")
def model(gateway: Gateway, tenant: Tenant) -> str:
    """A warm model of the tenant."""
    tenant.declare(MODEL)
    tenant.wait_ready(MODEL)
    answer = gateway.predict(tenant, MODEL)
    assert answer.status_code == 200, answer.text
    return MODEL


@pytest.fixture(scope="module")
def neighbour(installed: Kubectl) -> str:
    """Another namespace."""
    metadata = {"name": "neighbour"}
    installed.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}])
    return metadata["name"]


def ask(url: str, credential: str = "", *, post: bool = False) -> httpx.Response:
    headers = {"authorization": f"Bearer {credential}"} if credential else {}
    body = {"instances": ["hello"]} if post else None
    return httpx.request(
        "POST" if post else "GET",
        url,
        json=body,
        headers=headers,
        timeout=CALL_TIMEOUT_S,
        trust_env=False,
    )


def test_an_accounts_token_opens_the_models_of_its_namespace(
    installed: Kubectl, gateway: Gateway, tenant: Tenant, neighbour: str, model: str
) -> None:
    url = gateway.url + PATH
    own = token(installed, tenant.namespace)
    assert ask(url, own, post=True).status_code == 200
    plain = ask(f"{gateway.url}/v1/models/{model}:predict", own, post=True)
    assert plain.status_code == 200, plain.text
    assert ask(url, token(installed, neighbour), post=True).status_code == 403
    for wrong in (token(installed, tenant.namespace, audience="other"), ""):
        refused = ask(url, wrong, post=True)
        assert refused.status_code == 401
        assert "kubectl create token default -n NAMESPACE --audience pilotlight" in refused.text
        assert refused.headers["www-authenticate"].startswith("Bearer")


def test_what_shows_all_tenants_is_the_operators(
    installed: Kubectl, gateway: Gateway, tenant: Tenant, neighbour: str, model: str
) -> None:
    operator = token(installed, NAMESPACE, OPERATOR)
    others = token(installed, tenant.namespace), token(installed, NAMESPACE)
    for path in ("/metrics", "/console", "/docs"):
        assert ask(gateway.url + path, operator).status_code in (200, 307)
        assert [ask(gateway.url + path, each).status_code for each in others] == [403, 403]
        assert OPERATOR in ask(gateway.url + path).text
    answer = gateway.predict(tenant, model)
    path = f"{gateway.url}/pilotlight/v1/explain/{answer.headers['x-request-id']}"
    assert ask(path, operator).json()["model"] == f"{tenant.namespace}/{model}"
    assert ask(path, token(installed, neighbour)).status_code == 404


def test_prometheus_reads_the_health_port_without_a_token(
    installed: Kubectl, gateway: Gateway
) -> None:
    monitor = kustomize(REPOSITORY / "manifests" / "overlays" / "production")
    [endpoint] = next(
        each["spec"]["podMetricsEndpoints"]
        for each in monitor
        if (each["kind"], each["metadata"]["name"]) == ("PodMonitor", "pilotlight-gateway")
    )
    label = "app.kubernetes.io/name=pilotlight-gateway"
    [pod, *_] = installed.get(*IN_NAMESPACE, "pods", "-l", label)["items"]
    ports = {each["name"]: each["containerPort"] for each in pod["spec"]["containers"][0]["ports"]}
    scraped = ask(f"http://{pod['status']['podIP']}:{ports[endpoint['port']]}{endpoint['path']}")
    assert "pilotlight_gateway_requests_total" in scraped.text


def test_new_keys_of_the_cluster_reach_the_gateway(
    installed: Kubectl, node: Cluster, gateway: Gateway, tenant: Tenant, model: str
) -> None:
    plane, url = node.plane, gateway.url + PATH
    assert plane is not None
    server = plane.programs["kube-apiserver"]
    key = node.folder / "rotated.key"
    write_key(key)
    before = token(installed, tenant.namespace)
    server.kill()
    server.command = [
        *(each for each in server.command if "signing-key-file" not in each),
        f"--service-account-key-file={key.with_suffix('.pub')}",
        f"--service-account-signing-key-file={key}",
    ]
    server.start()
    plane.wait("API server ready again", f"{API_URL}/readyz")
    after = installed(
        "create", "token", "default", "-n", tenant.namespace, "--audience", "pilotlight"
    ).strip()
    wait_until(
        lambda: ask(url, after, post=True).status_code == 200,
        timeout_s=ROTATION_S,
        what="a token of the new key",
    )
    assert ask(url, before, post=True).status_code == 200


@pytest.fixture
def is_open(installed: Kubectl, node: Cluster, gateway: Gateway) -> Iterator[None]:
    """The variable of the component `open`, until the end of the test."""
    names = ("deployment/pilotlight-gateway", "deployment/pilotlight-controller")

    def change(variable: str) -> None:
        for name in names:
            installed(*IN_NAMESPACE, "set", "env", name, variable)
        for name in names:
            installed(*IN_NAMESPACE, "rollout", "status", name, "--timeout=180s")

    change("PILOTLIGHT_AUTH=open")
    yield
    change("PILOTLIGHT_AUTH-")


def complaints(kubectl: Kubectl) -> list[str]:
    """Of `pilotlight doctor` about clients."""
    told = subprocess.run(
        [sys.executable, "-m", "pilotlight", "doctor", "--json"],
        cwd=REPOSITORY,
        env={**os.environ, "KUBECONFIG": str(kubectl.kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.stdout, told.stderr
    found = json.loads(told.stdout)
    assert "Kubernetes" in [each["subject"] for each in found]
    return [each["detail"] for each in found if each["subject"] == "clients"]


def test_an_installation_that_asks_for_tokens_has_no_complaint(installed: Kubectl) -> None:
    assert complaints(installed) == []


@pytest.mark.usefixtures("is_open")
def test_an_open_installation_says_so(
    installed: Kubectl, gateway: Gateway, tenant: Tenant, model: str
) -> None:
    assert ask(gateway.url + PATH, post=True).status_code == 200
    assert "no client needs a key or token" in ask(f"{gateway.url}/console").text
    [detail] = complaints(installed)
    assert "whoever reaches the gateway" in detail

    def message() -> str:
        conditions = tenant.status(model)["conditions"]
        return next(str(each["message"]) for each in conditions if each["type"] == "Ready")

    wait_until(lambda: "PILOTLIGHT_AUTH=open" in message(), timeout_s=120, what="Ready says so")
