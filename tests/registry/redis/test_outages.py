import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from registry.domain.pod_state import Granted
from registry.errors import LeaseLost, RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.transactions import REPLY_TIMEOUT_S
from registry.redis.watch import ClusterWatch
from tests import servers
from tests.registry.redis.clients import (
    KEY,
    SPEC,
    Pod,
    agrees,
    eventually,
    reserve,
    running,
    terms,
    until,
)

pytestmark = pytest.mark.slow

SOON_S = 30.0
"""A second, plus the delay of a busy machine; far below the long timeouts of other tests."""


@pytest.fixture(params=[True, False], ids=["with-data", "without-data"])
def own_server(
    request: pytest.FixtureRequest, executable: str, tmp_path: Path
) -> Iterator[servers.RedisServer]:
    """A server that the test may stop, with and without persistence."""
    options = ("--appendonly", "yes", "--appendfsync", "always") if request.param else ()
    with servers.redis_server(tmp_path, executable=executable, options=options) as started:
        yield started


@pytest.fixture
def fragile_server(executable: str, tmp_path: Path) -> Iterator[servers.RedisServer]:
    with servers.redis_server(tmp_path, executable=executable) as started:
        yield started


async def seconds_until_unavailable(registry: Registry) -> float:
    began_s = time.monotonic()
    with pytest.raises(RegistryUnavailable):
        await reserve(registry, "a")
    return time.monotonic() - began_s


async def is_available(registry: Registry) -> bool:
    try:
        await registry.cluster()
    except RegistryUnavailable:
        return False
    return True


async def test_the_copy_outlives_redis_and_is_repaired(own_server: servers.RedisServer) -> None:
    keeps_data = bool(own_server.options)
    registry = await Registry.connect(own_server.url)
    async with running(ClusterWatch(registry)) as watch:
        await registry.put_models([SPEC])
        await Pod.join_warm(registry, "a", lease_ttl_s=600)
        own_server.stop()
        await until(lambda: not watch.is_connected)
        assert watch.state.holders(KEY)["a"].is_warm
        for _ in range(3):
            assert await seconds_until_unavailable(registry) < SOON_S
        age_s = watch.age_s()
        await until(lambda: watch.age_s() > age_s + 0.2)
        own_server.start()
        await until(lambda: watch.is_connected)
        await until(lambda: watch.age_s() < age_s)
        assert ("a" in watch.state.pods) == keeps_data
        await eventually(lambda: is_available(registry))
        await Pod.join_warm(registry, "b")
        assert isinstance(await reserve(registry, "b"), Granted)
        assert await agrees(watch, registry)
        assert set(watch.state.pods) == ({"a", "b"} if keeps_data else {"b"})
    await registry.close()


async def test_a_new_connection_does_not_load_the_script_again(
    fragile_server: servers.RedisServer,
) -> None:
    """Redis 6 writes each load to its file: 46 KB for each attempt while its disk is full."""
    received = []
    with redis.Redis.from_url(fragile_server.url) as direct:
        for _ in range(2):
            registry = await Registry.connect(fragile_server.url)
            await registry.cluster()
            await registry.close()
            received.append(direct.info("stats")["total_net_input_bytes"])
    assert received[1] - received[0] < 0.1 * received[0]


async def test_a_pod_whose_registration_was_lost_gets_lease_lost(
    fragile_server: servers.RedisServer,
) -> None:
    registry = await Registry.connect(fragile_server.url)
    pod = await Pod.join(registry, "a")
    fragile_server.stop()
    with pytest.raises(RegistryUnavailable):
        await pod.heartbeat()
    fragile_server.start()
    await eventually(lambda: is_available(registry))
    with pytest.raises(LeaseLost):
        await pod.heartbeat()
    assert (await Pod.join(registry, "a")).epoch > pod.epoch
    await registry.close()


async def test_a_hanging_redis_is_unavailable(
    fragile_server: servers.RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = await Registry.connect(fragile_server.url)
    async with running(ClusterWatch(registry)) as watch:
        await Pod.join_warm(registry, "a", slots=50, lease_ttl_s=600)
        assert fragile_server.process is not None
        os.kill(fragile_server.process.pid, signal.SIGSTOP)
        try:
            with monkeypatch.context() as patch:
                patch.setattr("registry.redis.transactions.REPLY_TIMEOUT_S", REPLY_TIMEOUT_S)
                calls = [seconds_until_unavailable(registry) for _ in range(5)]
                assert max(await asyncio.gather(*calls)) < SOON_S
                for _ in range(4):
                    assert await seconds_until_unavailable(registry) < SOON_S
        finally:
            os.kill(fragile_server.process.pid, signal.SIGCONT)
        await eventually(lambda: is_available(registry))
        await eventually(lambda: agrees(watch, registry))
        assert isinstance(await reserve(registry, "a"), Granted)
    await registry.close()


async def test_a_reply_that_came_while_this_process_was_late_is_read(
    fragile_server: servers.RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = await Registry.connect(fragile_server.url)
    losses: list[None] = []
    registry.transactions.on_lost = lambda: losses.append(None)
    monkeypatch.setattr("registry.redis.transactions.REPLY_TIMEOUT_S", 0.2)
    monkeypatch.setattr("registry.redis.transactions.SNAPSHOT_TIMEOUT_S", 0.2)
    transactions = registry.transactions
    for call in (transactions.sync, transactions.snapshot, lambda: transactions.command("PING")):
        asyncio.get_running_loop().call_later(0.0, time.sleep, 0.5)  # as a pause of the process is
        await call()
    assert losses == []
    await registry.close()


async def test_connecting_to_a_closed_port_fails_soon() -> None:
    began_s = time.monotonic()
    with pytest.raises(RegistryUnavailable):
        await Registry.connect(f"redis://127.0.0.1:{servers.free_port()}/0")
    assert time.monotonic() - began_s < SOON_S


async def test_connecting_to_a_silent_server_fails_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.redis.transactions.REPLY_TIMEOUT_S", REPLY_TIMEOUT_S)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began_s = time.monotonic()
        with pytest.raises(RegistryUnavailable):
            await Registry.connect(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        assert time.monotonic() - began_s < SOON_S


@pytest.mark.parametrize(
    "response", [b"-ERR max number of clients reached\r\n", b"HTTP/1.1 400\r\n"]
)
async def test_a_server_with_another_protocol_is_unavailable(response: bytes) -> None:
    async def reply(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(response)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(RegistryUnavailable):
            await Registry.connect(f"redis://127.0.0.1:{port}/0")


async def test_arguments_that_json_cannot_express_fail_at_the_caller(
    fragile_server: servers.RedisServer,
) -> None:
    registry = await Registry.connect(fragile_server.url)
    with pytest.raises(TypeError):
        registry.transactions.submit("infer_end", object(), "a")
    assert (await registry.cluster()).models == {}
    await registry.close()


async def test_a_failing_callback_does_not_affect_the_others(
    fragile_server: servers.RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    registry = await Registry.connect(fragile_server.url)

    def fail(result: object) -> None:
        raise ZeroDivisionError(result)

    registry.release("x", terms("a"), fail)
    after = registry.transactions.submit("infer_end", "x", "a")
    assert await after is True
    assert "callback of an operation failed" in caplog.text
    assert (await registry.cluster()).models == {}
    await registry.close()


async def test_a_wrong_password_is_refused(executable: str, tmp_path: Path) -> None:
    options = ("--requirepass", "secret")
    with servers.redis_server(tmp_path, executable=executable, options=options) as guarded:
        address = f"127.0.0.1:{guarded.port}/3"
        for user in ("", "wrong@", ":wrong@"):
            with pytest.raises(RegistryUnavailable):
                await Registry.connect(f"redis://{user}{address}")
        for user in (":secret@", "default:secret@"):
            registry = await Registry.connect(f"redis://{user}{address}")
            assert (await registry.cluster()).models == {}
            await registry.close()
