"""The ConfigMap with the cluster's token issuer, at a small API server."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from kubernetes.aio import client

from controller.api import KubernetesError, read_json
from controller.cluster_issuer import CONFIG_MAP, read_issuer, write_issuer
from gateway.authentication.issuers import read_all_issuers
from tests.controller.api_server import ApiServer, connect, running
from tests.rendered import kustomized

NAMESPACE = "pilotlight"
NAME = "https://kubernetes.default.svc.cluster.local"
OLD, NEW = {"keys": [{"kid": "old"}]}, {"keys": [{"kid": "new"}]}


def keep(server: ApiServer, check: Callable[[client.ApiClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with running(server) as url:
            api = connect(url)
            try:
                await check(api)
            finally:
                await api.close()

    asyncio.run(run())


@pytest.fixture
def server() -> ApiServer:
    return ApiServer(documents={"/.well-known/openid-configuration": {"issuer": NAME}, JWKS: OLD})


JWKS = "/openid/v1/jwks"


def keys_of(server: ApiServer) -> object:
    return json.loads(server.config_maps[CONFIG_MAP]["data"]["jwks"])


@pytest.mark.slow
def test_issuer_and_keys_are_written_and_follow_the_clusters(server: ApiServer) -> None:
    async def check(api: client.ApiClient) -> None:
        await write_issuer(api, NAMESPACE)
        assert server.config_maps[CONFIG_MAP]["data"]["issuer"] == NAME
        assert keys_of(server) == OLD
        version = server.version
        await write_issuer(api, NAMESPACE)
        assert server.version == version  # nothing is written where nothing has changed
        server.documents[JWKS] = NEW
        await write_issuer(api, NAMESPACE)
        assert keys_of(server) == NEW

    keep(server, check)


def test_a_replica_that_was_slow_puts_no_old_keys_back(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is overtaken between its reading of the keys and its write."""

    async def check(api: client.ApiClient) -> None:
        async def read_then_pause(_: client.ApiClient) -> dict[str, str]:
            monkeypatch.undo()
            server.documents[JWKS] = {"keys": []}
            found = await read_issuer(api)
            server.documents[JWKS] = NEW
            await write_issuer(api, NAMESPACE)
            return found

        await write_issuer(api, NAMESPACE)
        monkeypatch.setattr("controller.cluster_issuer.read_issuer", read_then_pause)
        await write_issuer(api, NAMESPACE)
        assert keys_of(server) == NEW

    keep(server, check)


def test_gateways_start_where_the_keys_cannot_be_read(server: ApiServer) -> None:
    server.missing = frozenset({"jwks"})

    async def check(api: client.ApiClient) -> None:
        with pytest.raises(KubernetesError, match=JWKS):
            await write_issuer(api, NAMESPACE)
        assert server.config_maps[CONFIG_MAP]["data"] == {}
        server.missing = frozenset()
        await write_issuer(api, NAMESPACE)
        server.missing = frozenset({"jwks"})
        with pytest.raises(KubernetesError):
            await write_issuer(api, NAMESPACE)
        assert keys_of(server) == OLD  # the last ones stay

    keep(server, check)


@pytest.mark.parametrize("document", [{}, {"issuer": None}, [NAME], "text"])
def test_a_document_without_an_issuer_is_an_error_of_the_api_server(
    server: ApiServer, document: object
) -> None:
    """After which the controller tries again."""
    server.documents["/.well-known/openid-configuration"] = document

    async def check(api: client.ApiClient) -> None:
        with pytest.raises(KubernetesError, match=r"must be an object with `issuer`, was"):
            await write_issuer(api, NAMESPACE)

    keep(server, check)


def test_the_gateway_reads_what_the_controller_writes(server: ApiServer, tmp_path: Path) -> None:
    async def check(api: client.ApiClient) -> None:
        await write_issuer(api, NAMESPACE)
        for name, text in server.config_maps[CONFIG_MAP]["data"].items():
            (tmp_path / name).write_text(text)
        [trusted] = read_all_issuers("", str(tmp_path), frozenset())
        assert (trusted.issuer, trusted.jwks) == (NAME, str(tmp_path / "jwks"))

    keep(server, check)


def test_documents_are_read_with_their_query(server: ApiServer) -> None:
    async def check(api: client.ApiClient) -> None:
        found = await read_json(api, JWKS, limit="5")
        assert found == OLD
        server.missing = frozenset({"jwks"})
        with pytest.raises(KubernetesError):
            await read_json(api, JWKS)

    keep(server, check)


@pytest.mark.parametrize("overlay", ["minimal", "production"])
def test_gateways_mount_the_config_map_and_the_controller_may_write_it(overlay: str) -> None:
    found = kustomized(overlay=overlay)
    pod = found["Deployment", "pilotlight-gateway"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment["PILOTLIGHT_CLUSTER_ISSUER"] == mounts["cluster-issuer"]
    assert "PILOTLIGHT_AUTH" not in environment
    volume = next(each for each in pod["volumes"] if each["name"] == "cluster-issuer")
    assert volume["configMap"] == {"name": CONFIG_MAP}
    assert environment["PILOTLIGHT_OPERATORS"] == "pilotlight:pilotlight-operator"
    assert ("ServiceAccount", "pilotlight-operator") in found
    role = found["Role", "pilotlight-controller"]
    rules = [(each["verbs"], each.get("resourceNames")) for each in role["rules"]]
    assert (["get", "update"], [CONFIG_MAP]) in rules
