"""Tokens at a real gateway process: accepted and rejected requests, and what errors disclose."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from common.settings_table import settings_from_fields
from gateway.settings import GatewaySettings, contradictions
from registry.domain.model import ModelSpec
from tests import servers
from tests.gateway.authentication.identity_provider import Issuer, new_key, published, trust
from tests.gateway.gateway_harness import GatewayHarness, running_harness
from tests.servers import wait_until

BODY = b'{"instances": [1]}'
PREDICT = "/serving/red/wise/v1/models/wise:predict"
API_KEY = "red-key-red-key-red"


@dataclass
class GuardedGateway:
    """A gateway that accepts tokens of the issuer and API keys."""

    harness: GatewayHarness
    issuer: Issuer
    folder: Path

    def send(
        self, path: str, credential: str = "", *, host: str = "", method: str = "POST"
    ) -> httpx.Response:
        headers = {"host": host} if host else {}
        if credential:
            headers["authorization"] = f"Bearer {credential}"
        return self.harness.client.request(
            method,
            self.harness.gateway.url + path,
            content=BODY if method == "POST" else None,
            headers=headers,
        )


@pytest.fixture(scope="module")
def guarded(
    redis: servers.RedisServer, client: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GuardedGateway]:
    issuer = Issuer({"first": new_key()})
    folder, keys = tmp_path_factory.mktemp("issuers"), tmp_path_factory.mktemp("keys")
    (keys / "red").write_text(API_KEY)
    with ExitStack() as stack:
        jwks = stack.enter_context(published(issuer))
        for tenant in ("red", "blue", "default", "_operator"):
            trust(folder, tenant, jwks, audience=tenant)
        harness = stack.enter_context(
            running_harness(
                tmp_path_factory.mktemp("guarded"),
                redis.url,
                "tokens",
                client,
                token_issuers=folder,
                api_keys=keys,
            )
        )
        started = GuardedGateway(harness, issuer, folder)
        token = issuer.token("first", aud="red")
        wait_until(
            lambda: (
                started.send("/serving/red/x/v1/models", token, method="GET").status_code == 200
            ),
            timeout_s=120,
            what="issuer's keys read",
        )
        yield started


@pytest.fixture(scope="module")
def model(guarded: GuardedGateway) -> ModelSpec:
    """A model of tenant red; blue has one whose existence must not be disclosed."""
    guarded.harness.declare("secret", namespace="blue")
    declared = guarded.harness.declare("wise", namespace="red")
    guarded.harness.start_pods("pod-a", slots=4, warm=declared)
    return declared


def test_a_token_of_the_tenant_is_accepted_and_not_forwarded(
    guarded: GuardedGateway, model: ModelSpec
) -> None:
    harness, token = guarded.harness, guarded.issuer.token("first", aud="red")
    response = harness.client.post(
        harness.gateway.url + PREDICT,
        content=BODY,
        headers={"authorization": f"Bearer {token}", "x-test": "response=headers"},
    )
    assert response.status_code == 200
    assert "authorization" not in response.json()["headers"]


def test_an_api_key_is_accepted_beside_tokens(guarded: GuardedGateway, model: ModelSpec) -> None:
    assert guarded.send(PREDICT, API_KEY).status_code == 200


def test_an_error_names_the_problem(guarded: GuardedGateway, model: ModelSpec) -> None:
    missing = guarded.send(PREDICT)
    assert (missing.status_code, missing.headers["www-authenticate"]) == (401, "Bearer")
    expired = guarded.send(
        PREDICT, guarded.issuer.token("first", aud="red", exp=int(time.time()) - 900)
    )
    assert expired.status_code == 401
    assert expired.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert "expired" in expired.json()["error"]
    other = guarded.send(PREDICT, guarded.issuer.token("first", aud="blue"))
    assert other.status_code == 403
    assert other.headers["www-authenticate"] == 'Bearer error="insufficient_scope"'


def _visible(response: httpx.Response) -> tuple[int, str, str | None]:
    return response.status_code, response.text, response.headers.get("www-authenticate")


@pytest.mark.parametrize("tenant", ["red", "default", "absent", ""])
@pytest.mark.parametrize(
    ("method", "suffix"),
    [
        ("POST", "/v1/models/{}:predict"),
        ("POST", "/v1/models/other:predict"),
        ("GET", "/v1/models/{}"),
        ("GET", "/v1/models"),
    ],
    ids=["predict", "predict-another", "metadata", "list"],
)
def test_another_tenants_model_looks_like_an_absent_one(
    guarded: GuardedGateway, model: ModelSpec, tenant: str, method: str, suffix: str
) -> None:
    token = guarded.issuer.token("first", aud=tenant) if tenant else ""

    def visible(name: str, *, by_host: bool) -> tuple[int, str, str | None]:
        path = suffix.format(name) if by_host else f"/serving/blue/{name}{suffix.format(name)}"
        host = f"{name}.blue.example.com" if by_host else ""
        status, text, challenge = _visible(guarded.send(path, token, host=host, method=method))
        return status, text.replace(name, "NAME"), challenge

    for by_host in (True, False):
        assert visible("secret", by_host=by_host) == visible("absent", by_host=by_host)


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/serving/red/wise/v1/models", "red"),
        ("/metrics", "_operator"),
        ("/docs", "_operator"),
        ("/serving/default/m/openai/v1/models", "default"),
    ],
)
def test_lists_and_metrics_need_the_credential_of_their_owner(
    guarded: GuardedGateway, model: ModelSpec, path: str, owner: str
) -> None:
    for tenant in ("red", "blue", "default", "_operator"):
        token = guarded.issuer.token("first", aud=tenant)
        is_refused = guarded.send(path, token, method="GET").status_code == 403
        assert is_refused is (tenant != owner)


def test_a_plain_list_is_that_of_the_tokens_only_tenant(
    guarded: GuardedGateway, model: ModelSpec
) -> None:
    listed = guarded.send("/v1/models", guarded.issuer.token("first", aud="red"), method="GET")
    assert listed.json() == {"models": ["wise"]}
    both = guarded.issuer.token("first", aud=["red", "default"])
    assert guarded.send("/v1/models", both, method="GET").json() == {"models": []}
    operator = guarded.issuer.token("first", aud="_operator")
    assert guarded.send("/v1/models", operator, method="GET").status_code == 403


def test_a_host_names_a_model_of_the_same_tenant(guarded: GuardedGateway, model: ModelSpec) -> None:
    token = guarded.issuer.token("first", aud="red")
    path = "/v1/models/wise:predict"
    assert guarded.send(path, token, host="wise.red.example.com").status_code == 200
    assert guarded.send(path, token, host="wise.blue.example.com").status_code == 403


@pytest.mark.slow
def test_rotated_keys_of_an_issuer_replace_the_old_ones(
    guarded: GuardedGateway, model: ModelSpec
) -> None:
    before = guarded.issuer.token("first", aud="red")
    assert guarded.send(PREDICT, before).status_code == 200
    guarded.issuer.keys = {"second": new_key("RS256")}
    after = guarded.issuer.token("second", algorithm="RS256", aud="red")
    wait_until(
        lambda: guarded.send(PREDICT, after).status_code == 200, timeout_s=120, what="the new key"
    )
    assert guarded.send(PREDICT, before).status_code == 401


def test_trusted_issuers_are_reloaded(guarded: GuardedGateway, model: ModelSpec) -> None:
    assert guarded.send("/serving/new/x/v1/models/x:predict", API_KEY).status_code == 401
    jwks = (guarded.folder / "red").read_text()
    (guarded.folder / "new").write_text(jwks.replace("audience: red", "audience: new"))
    [key, *_] = guarded.issuer.keys
    algorithm = "RS256" if key == "second" else "ES256"
    token = guarded.issuer.token(key, algorithm=algorithm, aud="new")
    wait_until(
        lambda: guarded.send("/serving/new/x/v1/models/x:predict", token).status_code == 404,
        timeout_s=120,
        what="the new tenant",
    )


def test_an_invalid_issuer_folder_is_rejected_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a readable folder"):
        settings_from_fields(GatewaySettings, {"token_issuers": str(tmp_path / "absent")})
    (tmp_path / "red").write_text("- {}")
    with pytest.raises(ValueError, match="issuer must be a string"):
        settings_from_fields(GatewaySettings, {"token_issuers": str(tmp_path)})


def test_clients_with_credentials_cannot_choose_the_policy(guarded: GuardedGateway) -> None:
    """`random` loads a model on every pod in turn."""
    headers = {"authorization": f"Bearer {API_KEY}", "x-pilotlight-policy": "random"}
    url = guarded.harness.gateway.url + PREDICT
    guarded.harness.declare("wise", namespace="red")
    response = guarded.harness.client.post(url, content=BODY, headers=headers)
    assert response.status_code == 400, response.text
    assert "--allow-policy-header" in response.json()["error"]


def test_keys_beside_an_open_gateway_are_a_mistake() -> None:
    for asking in (GatewaySettings(api_keys="/folder"), GatewaySettings(token_issuers="/folder")):
        assert contradictions(asking) == []
        [problem] = contradictions(replace(asking, auth="open"))
        assert "PILOTLIGHT_AUTH" in problem
    assert contradictions(GatewaySettings(cluster_issuer="/folder", auth="open")) == []
