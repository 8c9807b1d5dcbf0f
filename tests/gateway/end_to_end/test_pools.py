"""A gateway that serves several pools, and its metrics on the health port."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from common.settings_table import read_settings
from gateway.settings import GatewaySettings
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness

POOLS = ("cpu", "gpu")


@pytest.fixture(scope="module")
def harnesses(
    redis: servers.RedisServer, client: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, GatewayHarness]]:
    """One gateway, seen from each pool."""
    folder = tmp_path_factory.mktemp("pools")
    with servers.gateway(
        folder, redis_url=redis.url, pool=",".join(POOLS), health_port=servers.free_port()
    ) as gateway:
        found = {name: GatewayHarness(redis.url, name, gateway, client) for name in POOLS}
        yield found
        for each in found.values():
            each.threads.shutdown(cancel_futures=True)
            each.stack.close()


@pytest.fixture(scope="module")
def models(harnesses: dict[str, GatewayHarness]) -> dict[str, str]:
    """The name of a model by its pool, each warm at a pod of that pool."""
    return {pool: each.start_warm_pod()[0].name.name for pool, each in harnesses.items()}


@pytest.mark.parametrize("pool", POOLS)
def test_each_model_is_served_by_its_own_pool(
    harnesses: dict[str, GatewayHarness], models: dict[str, str], pool: str
) -> None:
    harness = harnesses[pool]
    url, name = harness.gateway.url, models[pool]
    by_path = harness.client.post(f"{url}/v1/models/{name}:predict", content=b"1")
    by_prefix = harness.client.post(
        f"{url}/serving/default/{name}/v1/models/{name}:predict", content=b"2"
    )
    by_host = harness.client.post(
        f"{url}/v1/models/{name}:predict", content=b"3", headers={"host": f"{name}.default.x.org"}
    )
    by_body = harness.client.post(
        f"{url}/openai/v1/completions",
        json={"model": name, "prompt": "a"},
        headers={"x-request-id": f"body-{pool}"},
    )
    answers = (by_path, by_prefix, by_host, by_body)
    assert [each.status_code for each in answers] == [200] * 4
    explained = harness.client.get(f"{url}/pilotlight/v1/explain/body-{pool}").json()
    assert explained["model"] == f"default/{name}"


def test_lists_and_readiness_are_of_all_pools(
    harnesses: dict[str, GatewayHarness], models: dict[str, str]
) -> None:
    harness = harnesses["cpu"]
    url = harness.gateway.url
    assert harness.client.get(f"{url}/v1/models").json()["models"] == sorted(models.values())
    ready = harness.client.get(f"{url}/readyz").json()
    assert ready["pods"] == len(POOLS)
    assert ready["registry_versions"].keys() == set(POOLS)
    for name in models.values():
        assert harness.client.get(f"{url}/v2/models/{name}/ready").status_code == 200
    assert harness.client.post(f"{url}/v1/models/nobody:predict").status_code == 404


def test_a_model_declared_a_moment_ago_is_found_in_its_pool(
    harnesses: dict[str, GatewayHarness], models: dict[str, str]
) -> None:
    for pool in reversed(POOLS):
        name = harnesses[pool].declare().name.name
        answer = harnesses[pool].client.post(
            f"{harnesses[pool].gateway.url}/v1/models/{name}:predict", content=b""
        )
        assert answer.status_code == 200
    assert models


def test_metrics_need_no_key_on_the_health_port(
    redis: servers.RedisServer, client: httpx.Client, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "_operator").write_text("k" * 32)
    port = servers.free_port()
    with servers.gateway(
        tmp_path / "gateway", redis_url=redis.url, api_keys=keys, health_port=port
    ) as gateway:
        assert client.get(f"{gateway.url}/metrics").status_code == 401
        found = client.get(f"http://127.0.0.1:{port}/metrics")
        assert found.status_code == 200
        assert "pilotlight_gateway_requests_in_flight 0.0" in found.text
        assert client.get(f"http://127.0.0.1:{port}/v1/models").status_code == 404


@pytest.mark.parametrize("text", ["a,,b", "a,a", "a, "])
def test_pools_that_are_no_names_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings(GatewaySettings, ["--pool", text], {}, prog="gateway")
    assert "names of pools, each once" in capsys.readouterr().err


def test_spaces_between_pools_are_ignored() -> None:
    settings = read_settings(GatewaySettings, ["--pool", "a, b"], {}, prog="gateway")
    assert settings.pools == ("a", "b")
