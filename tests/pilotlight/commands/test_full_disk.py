"""Verbs with a real Redis that cannot write its append-only file: the disk is full."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotlight.platform.processes import redis_binary
from pilotlight.state_dir import PlatformState, StateDir
from registry.domain.pod import PodInfo
from registry.domain.pod_state import LoadMode
from registry.errors import RegistryUnavailable
from registry.inference_service.reader import read_documents
from registry.redis.client import Registry
from tests import servers
from tests.pilotlight.conftest import SERVICE, Cli, write_yaml
from tests.registry.redis.clients import act, reserve

_SAVING = ("--appendonly", "yes", "--appendfsync", "no")


@pytest.fixture
def full(tmp_path: Path) -> Iterator[servers.RedisServer]:
    """A Redis with the model `first` and a pod, whose files cannot grow any more."""
    program = tmp_path / "redis-server"
    program.write_text(f"""#!/bin/sh\ntrap '' XFSZ\nexec {redis_binary()} "$@"\n""")
    program.chmod(0o700)
    folder = tmp_path / "home" / "redis"
    specs = read_documents([("first", SERVICE.format(name="first", folder="x"))])
    pod = PodInfo("pod-1", "127.0.0.1:1", "node-1")
    with servers.redis_server(folder, executable=str(program), options=_SAVING) as server:
        act(server.url, "default", lambda registry: registry.put_models(specs))
        act(server.url, "default", lambda each: each.register_pod(pod, lease_ttl_s=0.001))
        assert server.process is not None
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        servers.wait_until(lambda: not _is_saving(server), what="a write fails")
        yield server


def _is_saving(server: servers.RedisServer) -> bool:
    """Whether Redis still saves what is written; writes a key, until one fails."""

    async def read(registry: Registry) -> bytes:
        with contextlib.suppress(RegistryUnavailable):
            await registry.transactions.command("SET", "last-write", "")
        report: bytes = await registry.transactions.command("INFO", "persistence")
        return report

    return b"aof_last_write_status:ok" in act(server.url, "default", read)


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(("get", "models"), id="get models"),
        pytest.param(("get", "pods"), id="get pods"),
        pytest.param(("describe", "model", "first"), id="describe"),
        pytest.param(("autoscaler",), id="autoscaler"),
    ],
)
def test_reads_need_no_disk(cli: Cli, full: servers.RedisServer, read: tuple[str, ...]) -> None:
    shown = cli(*read, "--redis-url", full.url)
    assert shown.status == 0, shown.err
    assert "cannot save changes, its disk is full" in shown.err


def test_pods_stay_as_last_reported(cli: Cli, full: servers.RedisServer) -> None:
    """Their leases cannot be renewed, nor can what has expired be removed."""
    assert "pod-1" in cli("get", "pods", "--redis-url", full.url).out


def test_a_pod_whose_lease_cannot_be_renewed_gets_requests_without_redis(
    full: servers.RedisServer,
) -> None:
    """Refused as gone, a request would wait for its removal, which Redis cannot save either."""

    async def ask(registry: Registry) -> None:
        with pytest.raises(RegistryUnavailable):
            await reserve(registry, "pod-1", mode=LoadMode.LOAD)

    act(full.url, "default", ask)


def test_a_write_names_folder_and_remedy(
    cli: Cli, full: servers.RedisServer, tmp_path: Path
) -> None:
    file = write_yaml(tmp_path / "second", second=SERVICE.format(name="second", folder="x"))
    failed = cli("apply", "-f", file, "--redis-url", full.url)
    assert failed.status == 1
    assert f"its disk is full: it writes to {full.folder} on its machine" in failed.err
    assert "Free space there" in failed.err
    assert "MISCONF" not in failed.err


def test_the_embedded_registry_names_what_is_free(cli: Cli, full: servers.RedisServer) -> None:
    home = StateDir(cli.home)
    with home.lock():
        home.write_state(PlatformState(1, "ready", redis_url=full.url))
        failed = cli("delete", "first")
    assert f"it writes to {home.redis}, whose file system has " in failed.err
