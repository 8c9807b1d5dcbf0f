"""Tokens of a cluster's service accounts, with the files that the controller's ConfigMap mounts."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.http_headers import Headers
from gateway.authentication.access import Access, create_access
from gateway.authentication.issuers import MIN_REFRESH_INTERVAL_S, ClusterIssuer
from gateway.errors import Forbidden, InvalidToken, NotReady, Unauthorized
from registry.domain.model import ModelSpec
from tests import servers
from tests.gateway.authentication.identity_provider import Issuer, new_key
from tests.gateway.gateway_harness import GatewayHarness, running_harness
from tests.servers import wait_until

pytestmark = pytest.mark.slow

NAME = "https://kubernetes.default.svc.cluster.local"
OPERATOR = "system:serviceaccount:pilotlight:pilotlight-operator"
BODY = b'{"instances": [1]}'
PREDICT = "/serving/red/wise/v1/models/wise:predict"
WAY = "kubectl create token default -n NAMESPACE --audience pilotlight"
OPERATORS_WAY = "kubectl create token pilotlight-operator -n pilotlight --audience pilotlight"
OTHER_OPERATORS_WAY = "kubectl create token x -n other --audience pilotlight"


def account_token(issuer: Issuer, namespace: str, name: str = "default", **claims: Any) -> str:
    """As the API server signs for `kubectl create token`."""
    subject = f"system:serviceaccount:{namespace}:{name}"
    bound = {"namespace": namespace, "serviceaccount": {"name": name, "uid": "1"}}
    [key] = issuer.keys
    usual: dict[str, Any] = {
        "iss": NAME,
        "aud": ["pilotlight"],
        "sub": subject,
        "kubernetes.io": bound,
        "nbf": int(time.time()),
    }
    return issuer.token(key, algorithm="RS256", **(usual | claims))


def mount(folder: Path, issuer: Issuer) -> None:
    (folder / "issuer").write_text(NAME)
    (folder / "jwks").write_bytes(issuer.document)


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer({"first": new_key("RS256")})


def access(folder: Path) -> Access:
    made = create_access(
        api_keys="",
        token_issuers="",
        cluster_issuer=str(folder),
        operators="other:x, pilotlight:pilotlight-operator",
    )
    assert made is not None
    return made


def check(guard: Access, namespace: str, token: str) -> None:
    headers: Headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    asyncio.run(guard.check(namespace, headers))


@pytest.mark.parametrize(
    ("claims", "tenants"),
    [
        pytest.param({"sub": "system:serviceaccount:red:default"}, {"red"}, id="tenant"),
        pytest.param({"sub": OPERATOR}, {"pilotlight", "_operator"}, id="operator"),
        pytest.param(
            {"sub": "system:serviceaccount:red:pilotlight-operator"}, {"red"}, id="name-only"
        ),
        pytest.param({"sub": OPERATOR, "aud": ["https://kubernetes"]}, set(), id="audience"),
        pytest.param({"sub": OPERATOR, "aud": None}, set(), id="no-audience"),
        pytest.param({"sub": "system:node:red"}, set(), id="node"),
        pytest.param({"sub": "x:system:serviceaccount:red:default"}, set(), id="prefixed"),
        pytest.param({"sub": ["system:serviceaccount:red:default"]}, set(), id="list"),
        pytest.param({}, set(), id="no-subject"),
    ],
)
def test_an_accounts_namespace_is_the_tenant(claims: dict[str, Any], tenants: set[str]) -> None:
    trusted = ClusterIssuer(NAME, "/jwks", frozenset(("pilotlight:pilotlight-operator",)))
    assert trusted.tenants_of({"aud": ["pilotlight"], **claims}) == tenants


def test_a_token_opens_its_namespace_and_no_other(tmp_path: Path, issuer: Issuer) -> None:
    mount(tmp_path, issuer)
    guard = access(tmp_path)
    check(guard, "red", account_token(issuer, "red"))
    for other in ("blue", "_operator"):
        with pytest.raises(Forbidden):
            check(guard, other, account_token(issuer, "red"))
    check(guard, "_operator", account_token(issuer, "pilotlight", "pilotlight-operator"))


def test_other_tokens_are_told_the_way(tmp_path: Path, issuer: Issuer) -> None:
    mount(tmp_path, issuer)
    guard = access(tmp_path)
    wrong = (
        account_token(issuer, "red", aud=[NAME]),
        account_token(issuer, "red", iss="https://other"),
        account_token(issuer, "red", exp=int(time.time()) - 900),
        account_token(Issuer({"first": new_key("RS256")}), "red"),
    )
    for token in wrong:
        with pytest.raises(InvalidToken, match=WAY):
            check(guard, "red", token)
    for token in ("", "no-token"):
        with pytest.raises(Unauthorized, match=WAY):
            check(guard, "red", token)
        with pytest.raises(Unauthorized, match=OTHER_OPERATORS_WAY):
            check(guard, "_operator", token)


def test_until_the_controller_has_read_the_issuer_tokens_wait(
    tmp_path: Path, issuer: Issuer
) -> None:
    guard = access(tmp_path)
    token = account_token(issuer, "red")
    with pytest.raises(NotReady, match="controller has not read"):
        check(guard, "red", token)
    with pytest.raises(NotReady):  # nor may a token name no issuer
        check(guard, "red", account_token(issuer, "red", iss=""))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster-issuer")


@pytest.fixture(scope="module")
def guarded(
    redis: servers.RedisServer,
    client: httpx.Client,
    folder: Path,
    issuer: Issuer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GatewayHarness]:
    mount(folder, issuer)
    with running_harness(
        tmp_path_factory.mktemp("guarded"), redis.url, "cluster", client, cluster_issuer=folder
    ) as harness:
        harness.start_pods("pod-a", slots=4, warm=harness.declare("wise", namespace="red"))
        yield harness


def send(harness: GatewayHarness, path: str, token: str, *, method: str = "GET") -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    content = BODY if method == "POST" else None
    url = harness.gateway.url + path
    return harness.client.request(method, url, content=content, headers=headers)


@pytest.mark.parametrize("path", ["/metrics", "/docs", "/console", "/pilotlight/v1/targets"])
def test_what_shows_all_tenants_is_the_operators(
    guarded: GatewayHarness, issuer: Issuer, path: str
) -> None:
    nobody = send(guarded, path, "")
    assert nobody.status_code == 401
    assert OPERATORS_WAY in nobody.text
    assert send(guarded, path, account_token(issuer, "red")).status_code == 403
    operator = send(guarded, path, account_token(issuer, "pilotlight", "pilotlight-operator"))
    assert operator.status_code in (200, 307)


def test_an_operator_reads_explanations_and_another_tenant_does_not(
    guarded: GatewayHarness, issuer: Issuer
) -> None:
    answer = send(guarded, PREDICT, account_token(issuer, "red"), method="POST")
    assert answer.status_code == 200, answer.text
    path = f"/pilotlight/v1/explain/{answer.headers['x-request-id']}"
    operator = account_token(issuer, "pilotlight", "pilotlight-operator")
    assert send(guarded, path, operator).status_code == 200
    assert send(guarded, path, account_token(issuer, "blue")).status_code == 404
    assert send(guarded, path, "").status_code == 401


def test_a_browser_signs_in_with_a_token_as_password(
    guarded: GatewayHarness, issuer: Issuer
) -> None:
    url = f"{guarded.gateway.url}/console"
    asked = guarded.client.get(url)
    assert asked.headers["www-authenticate"].startswith("Basic ")
    tenant = account_token(issuer, "red")
    assert "red/wise" in guarded.client.get(url, auth=("red", tenant)).text
    assert guarded.client.get(url, auth=("", tenant)).status_code == 403
    operator = account_token(issuer, "pilotlight", "pilotlight-operator")
    assert "all namespaces" in guarded.client.get(url, auth=("", operator)).text


def test_new_keys_of_the_cluster_replace_the_old_ones(
    guarded: GatewayHarness, folder: Path, issuer: Issuer
) -> None:
    before = account_token(issuer, "red")
    assert send(guarded, PREDICT, before, method="POST").status_code == 200
    rotated = Issuer({"second": new_key("RS256")})
    mount(folder, rotated)
    try:
        after = account_token(rotated, "red")
        wait_until(
            lambda: send(guarded, PREDICT, after, method="POST").status_code == 200,
            timeout_s=60,
            what="the new key",
        )
        wait_until(  # a connection's head is authorised anew every second
            lambda: send(guarded, PREDICT, before, method="POST").status_code == 401,
            timeout_s=60,
            what="the old key is refused",
        )
    finally:
        mount(folder, issuer)
    wait_until(  # without a request of an unknown key, too
        lambda: send(guarded, PREDICT, after, method="POST").status_code == 401,
        timeout_s=60 + MIN_REFRESH_INTERVAL_S,
        what="the withdrawn key",
    )


def test_an_open_gateway_asks_nobody_and_its_console_says_so(
    redis: servers.RedisServer, client: httpx.Client, folder: Path, tmp_path: Path
) -> None:
    options = {"cluster_issuer": folder, "auth": "open", "host": "0.0.0.0"}
    with running_harness(tmp_path, redis.url, "open", client, **options) as harness:
        spec: ModelSpec = harness.declare("wise", namespace="red")
        harness.start_pods("pod-a", slots=4, warm=spec)
        assert send(harness, PREDICT, "", method="POST").status_code == 200
        assert send(harness, "/metrics", "").status_code == 200
        assert "no client needs a key or token" in send(harness, "/console", "").text
