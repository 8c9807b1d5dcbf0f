"""Tenants that name storage of others, of the pool, or inside the network."""

import importlib.util
import json
import os
import shutil
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from registry.domain.model import ModelName, ModelSpec
from registry.domain.tenant_rules import parse_rules
from runtime.errors import ModelInvalid, StorageFailed
from runtime.storage.access import (
    REFUSAL,
    AddressRefused,
    connect_publicly,
    host_of,
    is_public,
    operator_hosts,
)
from runtime.storage.ranged_download import Bandwidth, ReadInterrupted
from runtime.storage.s3 import S3Storage, open_s3
from runtime.storage.s3_connections import options_without_pool
from runtime.storage.storages import StorageOptions, Storages
from runtime.tiers.disk_cache import DiskCache
from runtime.tiers.generation_folder import cache_name
from tests.runtime.attacks.recording_web import web

pytestmark = pytest.mark.slow

needs_kserve_storage = pytest.mark.skipif(
    importlib.util.find_spec("kserve_storage") is None, reason="kserve-storage is not installed"
)
POOLS_KEY, POOLS_SECRET = "AKIAPOOL", "pool-secret"


def cache_of(folder: Path, *, prefixes: str = "", **environment: str) -> DiskCache:
    """The cache of a pod on a cluster, with the pool's credentials in its environment."""
    pools = {
        "AWS_ACCESS_KEY_ID": POOLS_KEY,
        "AWS_SECRET_ACCESS_KEY": POOLS_SECRET,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    options = StorageOptions(
        environment={**os.environ, **pools, **environment},
        claim_mounts=folder / "pvc",
        read_timeout_s=5.0,
        rules=lambda: parse_rules(prefixes=prefixes),
    )
    return DiskCache(folder / "cache", Storages(options), Bandwidth(None))


def model(uri: str, namespace: str = "tenant") -> ModelSpec:
    return ModelSpec(ModelName(namespace, "m"), uri)


def put_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(64))


def test_the_cached_weights_of_another_team_are_not_read(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, prefixes="team=file:///")
    put_model(tmp_path / "weights")
    team = model(f"file://{tmp_path}/weights", "team")
    cache.fetch_assets(team)
    cache.fetch_weights(team)
    theirs = model(f"file://{tmp_path}/cache/{cache_name(team.key)}")
    with pytest.raises(StorageFailed, match="may grant a prefix") as caught:
        cache.fetch_assets(theirs)
    missing = model(f"file://{tmp_path}/cache/nothing")
    with pytest.raises(StorageFailed) as other:
        cache.fetch_assets(missing)  # the answer does not depend on what is there
    there, not_there = (
        str(each.value).replace(spec.storage_uri, "URI")
        for each, spec in ((caught, theirs), (other, missing))
    )
    assert there == not_there


def test_a_link_does_not_lead_out_of_a_granted_folder(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, prefixes=f"tenant=file://{tmp_path}/granted")
    put_model(tmp_path / "secret")
    (tmp_path / "granted").mkdir()
    (tmp_path / "granted" / "m").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelInvalid, match="leads out"):
        cache.fetch_assets(model(f"file://{tmp_path}/granted/m"))


def test_a_claim_is_read_by_granted_namespaces_only(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, prefixes="team=pvc://claim/team")
    put_model(tmp_path / "pvc" / "claim" / "team" / "m")
    cache.fetch_assets(model("pvc://claim/team/m", "team"))
    for namespace, uri in (("tenant", "pvc://claim/team/m"), ("team", "pvc://claim/other")):
        with pytest.raises(StorageFailed, match="may not read pvc://"):
            cache.fetch_assets(model(uri, namespace))


def test_a_link_does_not_lead_out_of_the_granted_folder_of_a_claim(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, prefixes="tenant=pvc://claim/tenant")
    put_model(tmp_path / "pvc" / "claim" / "team" / "m")
    (tmp_path / "pvc" / "claim" / "tenant").mkdir()
    (tmp_path / "pvc" / "claim" / "tenant" / "m").symlink_to("../team/m")
    with pytest.raises(ModelInvalid, match="leads out"):
        cache.fetch_assets(model("pvc://claim/tenant/m"))


def test_a_withdrawn_grant_ends_the_use_of_cached_files(tmp_path: Path) -> None:
    put_model(tmp_path / "weights")
    spec = model(f"file://{tmp_path}/weights")
    granted = cache_of(tmp_path, prefixes="tenant=file:///")
    granted.fetch_assets(spec)
    granted.close()
    with pytest.raises(StorageFailed, match="may not read file://"):
        cache_of(tmp_path).fetch_assets(spec)


def test_the_pools_keys_sign_nothing_that_is_not_granted(tmp_path: Path) -> None:
    with web() as store:
        cache = cache_of(tmp_path, prefixes="team=s3://team/", AWS_ENDPOINT_URL=store.url)
        for namespace in ("team", "tenant"):
            with pytest.raises(StorageFailed):
                cache.fetch_assets(model("s3://team/t5", namespace))
        signed, anonymous = (headers for _, headers in store.requests)
        assert f"Credential={POOLS_KEY}/" in signed["authorization"]
        assert "authorization" not in anonymous
        assert POOLS_KEY not in json.dumps(store.requests[1])
        cache.close()


def test_files_cached_by_a_grant_are_checked_again_without_it(tmp_path: Path) -> None:
    """A pod whose rules changed asks the store, anonymously, before it serves what is on disk."""
    spec = model("s3://team/t5")
    with web() as store:
        cache = cache_of(tmp_path, AWS_ENDPOINT_URL=store.url)
        folder = cache.folder_of(spec.key)
        put_model(folder)
        listing = [["config.json", 2, "v"], ["model.safetensors", 64, "v"]]
        (folder / ".listing.json").write_text(json.dumps(listing))  # by the pool's credentials
        with pytest.raises(StorageFailed, match="cannot be listed"):
            cache.fetch_assets(spec)
        assert len(store.requests) == 1
        cache.close()


def test_a_library_gets_nothing_of_the_pods_environment(tmp_path: Path) -> None:
    """The hub's cache and token of the pool serve only models that are granted them."""
    hub = tmp_path / "hub-home" / "hub" / "models--acme--private"
    snapshot = hub / "snapshots" / ("a" * 40)
    put_model(snapshot)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("a" * 40)
    environment = {"HF_HOME": str(tmp_path / "hub-home"), "HF_HUB_OFFLINE": "1"}
    cache = cache_of(tmp_path, prefixes="team=hf://acme/", **environment)
    cache.fetch_assets(model("hf://acme/private", "team"))
    with pytest.raises(
        StorageFailed, match=r"the cache of the hub \(.*/\.staging/.* does not have it"
    ):
        cache.fetch_assets(model("hf://acme/private"))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.1.2.3",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "example.com",
        "localhost",
        "",
        "2130706433",
        "0x7f.1",
    ],
)
def test_private_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808"])
def test_public_addresses_are(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "0.0.0.0",
        "127.1",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "::1",
        "::ffff:127.0.0.1",
        "no-such-host.invalid",
    ],
)
@pytest.mark.parametrize("is_open", [True, False])
def test_refusals_of_private_hosts_reveal_nothing(host: str, *, is_open: bool) -> None:
    with web() as server:
        port = server.port if is_open else 1
        with pytest.raises(AddressRefused) as caught:
            connect_publicly((host, port), 5.0, frozenset())
        assert str(caught.value) == REFUSAL
        assert server.requests == []


def test_the_address_that_was_checked_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that resolves to a public address first and to a private one then (DNS rebinding)."""
    answers = iter(["8.8.8.8", "127.0.0.1"])
    resolved: list[str] = []

    def resolve(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        numeric = host if host[0].isdigit() else next(answers)
        resolved.append(numeric)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (numeric, port))]

    connected: list[Any] = []

    def connect(address: Any, *_: Any, **__: Any) -> socket.socket:
        connected.append(address)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(AddressRefused):
        connect_publicly(("rebinding.example", 80), 5.0, frozenset())
    assert connected == [("8.8.8.8", 80)]
    assert resolved == ["8.8.8.8"]


def test_one_private_address_among_public_ones_refuses_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 80)) for ip in ("8.8.8.8", "10.0.0.1")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(AddressRefused):
        connect_publicly(("mixed.example", 80), 5.0, frozenset())


@needs_kserve_storage
def test_a_url_of_a_private_address_is_not_fetched(tmp_path: Path) -> None:
    with web() as inside:
        cache = cache_of(tmp_path, prefixes="tenant=http:// https://")
        answers = set()
        for place in (
            f"http://127.0.0.1:{inside.port}",
            "https://127.0.0.1:1",
            "https://no-such-host.invalid",
        ):
            uri = f"{place}/secret.zip"
            with pytest.raises(StorageFailed, match=REFUSAL) as caught:
                cache.fetch_assets(model(uri))
            answers.add(str(caught.value).replace(uri, "URI"))
        assert len(answers) == 1
        assert inside.requests == []


@needs_kserve_storage
def test_a_redirect_does_not_lead_to_a_private_address(tmp_path: Path) -> None:
    with web("127.0.0.2") as inside, web(redirect=f"{inside.url}/secret.zip") as outside:
        uri = f"http://localhost:{outside.port}/model.zip"
        cache = cache_of(tmp_path, prefixes=f"tenant=http://localhost:{outside.port}/")
        with pytest.raises(StorageFailed, match=REFUSAL):
            cache.fetch_assets(model(uri))
        assert [path for path, _ in outside.requests] == ["/model.zip"]
        assert inside.requests == []


def test_an_endpoint_in_a_tenants_secret_is_not_a_way_into_the_network(tmp_path: Path) -> None:
    with web() as inside:
        for host in ("127.0.0.1", "localhost"):
            keys = {"AWS_ACCESS_KEY_ID": "AKIATENANT", "AWS_SECRET_ACCESS_KEY": "s"}
            keys["S3_ENDPOINT"], keys["S3_USE_HTTPS"] = f"{host}:{inside.port}", "0"
            access = open_s3(options_without_pool(keys, frozenset()), read_timeout_s=5.0)
            with pytest.raises(StorageFailed, match="Could not connect"):
                S3Storage("s3://bucket/m", access).list_files()
            url = f"http://{host}:{inside.port}/bucket/m"
            with (
                access.connections.reader(partial(str, url), "e", 2) as reader,
                pytest.raises(ReadInterrupted, match=REFUSAL),
            ):
                list(reader.read(0, 2, memoryview(bytearray(2))))
            allowed = options_without_pool(keys, frozenset({host}))
            with pytest.raises(StorageFailed, match="403"):
                S3Storage("s3://bucket/m", open_s3(allowed, read_timeout_s=5.0)).list_files()
        assert len(inside.requests) == 2
        assert all("AKIATENANT/" in headers["authorization"] for _, headers in inside.requests)


def test_hosts_of_the_operator_are_those_of_the_pods_environment() -> None:
    environment = {"AWS_ENDPOINT_URL": "http://minio.storage:9000", "S3_ENDPOINT": "Store:80"}
    assert {"minio.storage", "store"} <= operator_hosts(environment)
    assert host_of("http://[::1") == ""


def test_the_cache_holds_no_files_of_a_refused_model(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    spec = model("file:///etc")
    with pytest.raises(StorageFailed):
        cache.fetch_assets(spec)
    assert not cache.folder_of(spec.key).exists()
    shutil.rmtree(tmp_path / "cache")
