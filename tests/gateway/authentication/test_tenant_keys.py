"""API keys of tenants at a real gateway process."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from common.settings_table import settings_from_fields
from gateway.settings import GatewaySettings
from pilotlight.commands.target import PlatformTarget
from pilotlight.state_dir import StateDir
from registry.domain.model import ModelSpec
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, running_harness
from tests.servers import wait_until

RED, BLUE, OPERATOR = "red-key-red-key-red", "blue-key-blue-key-blue", "operator-key-operator"
SHARED = "shared-key-shared-key"
BODY = b'{"instances": [1]}'


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "red").write_text(f"older-key-older-key\n{RED}\n")
    (folder / "blue").write_text(BLUE)
    (folder / "_operator").write_text(OPERATOR)
    for namespace in ("red", "green"):
        with (folder / namespace).open("a") as file:
            file.write(f"{SHARED}\n")
    return folder


@pytest.fixture(scope="module")
def guarded(
    redis: servers.RedisServer,
    client: httpx.Client,
    keys: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GatewayHarness]:
    folder = tmp_path_factory.mktemp("guarded")
    with running_harness(folder, redis.url, "guarded", client, api_keys=keys) as harness:
        yield harness


@pytest.fixture(scope="module")
def model(guarded: GatewayHarness) -> ModelSpec:
    declared = guarded.declare("wise", namespace="red")
    guarded.start_pods("pod-a", slots=4, warm=declared)
    return declared


def send(
    harness: GatewayHarness, path: str, headers: dict[str, str], body: bytes | None = BODY
) -> int:
    method = "GET" if body is None else "POST"
    url = harness.gateway.url + path
    return harness.client.request(method, url, content=body, headers=headers).status_code


PREDICT = "/serving/red/wise/v1/models/wise:predict"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"authorization": f"Bearer {RED}"}, 200, id="bearer"),
        pytest.param({"x-api-key": RED}, 200, id="x-api-key"),
        pytest.param({"x-api-key": "older-key-older-key"}, 200, id="second-key-of-a-rotation"),
        pytest.param({}, 401, id="none"),
        pytest.param({"x-api-key": BLUE}, 401, id="another-tenants"),
        pytest.param({"x-api-key": OPERATOR}, 401, id="the-operators"),
        pytest.param({"authorization": f"Basic {RED}"}, 401, id="another-scheme"),
        pytest.param({"x-api-key": RED[:-1]}, 401, id="truncated"),
    ],
)
def test_a_model_needs_a_key_of_its_tenant(
    guarded: GatewayHarness, model: ModelSpec, headers: dict[str, str], status: int
) -> None:
    assert send(guarded, PREDICT, headers) == status


def test_an_absent_model_looks_like_another_tenants_model(
    guarded: GatewayHarness, model: ModelSpec
) -> None:
    absent = PREDICT.replace("wise", "absent")
    assert send(guarded, absent, {"x-api-key": BLUE}) == send(guarded, PREDICT, {"x-api-key": BLUE})
    assert send(guarded, absent, {"x-api-key": RED}) == 404


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        pytest.param("/serving/red/wise/v1/models", RED, id="list"),
        pytest.param("/serving/red/wise/openai/v1/models", RED, id="openai-list"),
        pytest.param("/metrics", OPERATOR, id="metrics"),
        pytest.param("/openapi.json", OPERATOR, id="anything-else"),
    ],
)
def test_lists_and_metrics_need_the_key_of_their_owner(
    guarded: GatewayHarness, model: ModelSpec, path: str, needed: str
) -> None:
    statuses = {
        key: send(guarded, path, {"x-api-key": key}, None) for key in (RED, BLUE, OPERATOR, "")
    }
    assert statuses.pop(needed) != 401
    assert set(statuses.values()) == {401}


def test_a_tenant_has_its_own_requests_explained(guarded: GatewayHarness, model: ModelSpec) -> None:
    """Another tenant's look like unknown ones, also where both have the same id."""

    def explained(request_id: str, key: str) -> tuple[int, str | None]:
        url = f"{guarded.gateway.url}/pilotlight/v1/explain/{request_id}"
        found = guarded.client.get(url, headers={"x-api-key": key})
        return found.status_code, found.json().get("model")

    sent = {"x-api-key": RED, "x-request-id": "mine"}
    assert send(guarded, PREDICT, sent) == 200
    own, hidden = (200, "red/wise"), (404, None)
    assert [explained("mine", key) for key in (RED, OPERATOR, BLUE)] == [own, own, hidden]
    assert explained("nobodys", RED) == hidden
    assert [explained("mine", key)[0] for key in ("", RED[:-1])] == [401, 401]
    blue = guarded.declare("calm", namespace="blue")
    calm = "/serving/blue/calm/v1/models/calm:predict"
    assert send(guarded, calm, {"x-api-key": BLUE, "x-request-id": "mine"}) == 200
    assert explained("mine", BLUE) == (200, "blue/calm")
    assert explained("mine", RED) == own
    guarded.run(lambda registry: registry.delete_models([blue.name]))


def test_openai_requests_need_the_key_of_the_model_in_path_or_body(
    guarded: GatewayHarness, model: ModelSpec
) -> None:
    body = b'{"model": "wise", "input": "x"}'
    under_red = "/serving/red/wise/openai/v1/embeddings"
    assert send(guarded, under_red, {"x-api-key": BLUE}, body) == 401
    assert send(guarded, under_red, {"x-api-key": RED}, body) == 200
    assert send(guarded, "/openai/v1/embeddings", {"x-api-key": BLUE}, body) == 404  # of `blue`


def test_a_plain_path_is_of_the_keys_only_namespace(
    guarded: GatewayHarness, model: ModelSpec
) -> None:
    red = {"x-api-key": RED}
    body = b'{"model": "wise", "input": "x"}'
    assert send(guarded, "/v1/models/wise:predict", red) == 200
    assert send(guarded, "/v2/models/wise/infer", red) == 200
    assert send(guarded, "/openai/v1/embeddings", red, body) == 200
    assert send(guarded, "/v1/models/absent:predict", red) == 404
    for path in ("/v1/models", "/v2/models/wise/ready", "/openai/v1/models/wise"):
        assert send(guarded, path, red, None) == 200
        assert send(guarded, path, {}, None) == 401
    url = f"{guarded.gateway.url}/v1/models"
    assert guarded.client.get(url, headers=red).json() == {"models": ["wise"]}
    assert guarded.client.get(url, headers={"x-api-key": BLUE}).json() == {"models": []}
    path = guarded.client.post(
        f"{guarded.gateway.url}/v1/models/wise:predict",
        content=BODY,
        headers={**red, "x-test": "response=headers"},
    ).json()["path"]
    assert path == "/v1/models/red~wise:predict"


@pytest.mark.parametrize("key", [SHARED, OPERATOR, "no-key-at-all-no-key"])
def test_a_plain_path_is_of_the_namespace_default_otherwise(
    guarded: GatewayHarness, model: ModelSpec, key: str
) -> None:
    """Keys of several namespaces, of none, and the operator's."""
    assert send(guarded, "/v1/models/wise:predict", {"x-api-key": key}) == 401
    assert send(guarded, PREDICT, {"x-api-key": key}) == (200 if key == SHARED else 401)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v2/health/ready"])
def test_health_is_public(guarded: GatewayHarness, path: str) -> None:
    assert send(guarded, path, {}, None) == 200


def test_keys_are_not_forwarded_to_pods(guarded: GatewayHarness, model: ModelSpec) -> None:
    url = guarded.gateway.url + PREDICT
    response = guarded.client.post(
        url,
        content=BODY,
        headers={"x-api-key": RED, "authorization": f"Bearer {RED}", "x-test": "response=headers"},
    )
    seen = response.json()["headers"]
    assert seen["x-test"] == "response=headers"
    assert not {"x-api-key", "authorization"} & seen.keys()


def test_new_keys_are_reloaded(guarded: GatewayHarness, model: ModelSpec, keys: Path) -> None:
    assert send(guarded, PREDICT, {"x-api-key": "fresh-key-fresh-key"}) == 401
    (keys / "red").write_text(f"{RED}\nfresh-key-fresh-key\n")
    wait_until(
        lambda: send(guarded, PREDICT, {"x-api-key": "fresh-key-fresh-key"}) == 200,
        what="the new key",
    )


def test_rejects_an_unreadable_folder_and_short_keys(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a readable folder"):
        settings_from_fields(GatewaySettings, {"api_keys": str(tmp_path / "absent")})
    (tmp_path / "red").write_text("short")
    with pytest.raises(ValueError, match="a key must have 16 bytes or more"):
        settings_from_fields(GatewaySettings, {"api_keys": str(tmp_path)})


async def test_the_command_line_finds_out_whether_clients_are_asked(
    guarded: GatewayHarness, harness: GatewayHarness
) -> None:
    for gateway, asks in ((guarded, True), (harness, False)):
        target = PlatformTarget(StateDir.of(None), gateway=gateway.gateway.url)
        assert await target.asks_clients() is asks
