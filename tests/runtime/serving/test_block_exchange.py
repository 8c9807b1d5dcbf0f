"""Blocks between pods of one node: who gets them, and what happens to wrong messages."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import uvloop

from common.inference_protocol.tensors import numeric_tensor
from common.pod_secret import PodSecret
from runtime.serving import tensor_exchange as block_exchange
from runtime.serving.tensor_exchange import MAX_TENSORS, BlockClient, BlockServer
from runtime.serving.tensor_store import TensorStore
from runtime.tiers.host_folder import HostFolder, HostSockets
from tests.servers import REPOSITORY, wait_until

PRODUCER = "10.0.0.1:8080"
ROWS = np.arange(1 << 17, dtype=np.float32)
"""512 KiB."""
SECRET = "s" * 32
LISTENER = """
import sys, time
from pathlib import Path
from runtime.tiers.host_folder import HostFolder
from runtime.tiers.host_folder import HostSockets
sockets = HostSockets(HostFolder(Path(sys.argv[1]), 0))
listener = sockets.listen(sys.argv[2])
print("listening", flush=True)
time.sleep(600)
"""


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[HostSockets]:
    path = tmp_path / ("long" * 40) / "host"  # more than a socket's address holds
    folder = HostFolder(path, 0)
    yield HostSockets(folder)
    folder.leave()
    assert not path.exists()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def secret_of(folder: Path, text: str = SECRET) -> PodSecret:
    path = folder / f"secrets-{text[0]}"
    path.write_text(text)
    return PodSecret(str(path))


@contextlib.asynccontextmanager
async def serving(server: BlockServer, sockets: HostSockets) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(server.run())
    try:
        await asyncio.to_thread(wait_until, lambda: sockets.may_have(PRODUCER))
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def exchange(
    sockets: HostSockets, threads: ThreadPoolExecutor, tmp_path: Path
) -> Callable[[TensorStore, Callable[[BlockClient], Awaitable[None]]], None]:
    """Runs a check of a client whose pod is on the node of the server of a store."""

    def run(store: TensorStore, check: Callable[[BlockClient], Awaitable[None]]) -> None:
        async def together() -> None:
            secret = secret_of(tmp_path)
            server = BlockServer(sockets, PRODUCER, store, secret, threads)
            async with serving(server, sockets):
                await check(BlockClient(sockets, secret, threads))

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(together())

    return run


def kept(store: TensorStore, rows: np.ndarray[tuple[int], np.dtype[np.float32]] = ROWS) -> str:
    identity = store.keep("team", "run", numeric_tensor("x", rows))
    assert identity is not None
    return identity


def descriptors(store: TensorStore, *identities: str) -> set[int]:
    blocks = [store.find_block("team", "run", each) for each in identities]
    return {block.descriptor for block in blocks if block is not None}


def new_store() -> TensorStore:
    return TensorStore(1 << 30, shares_memory=True)


def test_blocks_are_mapped_and_small_or_unknown_tensors_are_not(
    exchange: Callable[..., None],
) -> None:
    store = new_store()
    large, small, unknown = kept(store), kept(store, ROWS[:100]), "0" * 32

    async def check(client: BlockClient) -> None:
        blocks = await client.fetch(PRODUCER, "team", "run", [unknown, large, small])
        assert list(blocks) == [large]
        assert np.array_equal(np.frombuffer(blocks[large], np.float32), ROWS)

    exchange(store, check)


def test_more_tensors_than_one_message_names(exchange: Callable[..., None]) -> None:
    store = new_store()
    identities = [kept(store, ROWS + number) for number in range(MAX_TENSORS + 3)]

    async def check(client: BlockClient) -> None:
        blocks = await client.fetch(PRODUCER, "team", "run", identities)
        firsts = [np.frombuffer(blocks[each], np.float32)[0] for each in identities]
        assert firsts == list(range(MAX_TENSORS + 3))

    exchange(store, check)


def test_other_runs_namespaces_and_secrets_get_nothing(
    exchange: Callable[..., None], sockets: HostSockets, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    store = new_store()
    identity = kept(store)

    async def check(client: BlockClient) -> None:
        stranger = BlockClient(sockets, secret_of(tmp_path, "t" * 32), threads)
        assert await client.fetch(PRODUCER, "team", "other", [identity]) == {}
        assert await client.fetch(PRODUCER, "other", "run", [identity]) == {}
        assert await stranger.fetch(PRODUCER, "team", "run", [identity]) == {}
        assert await client.fetch("10.0.0.2:8080", "team", "run", [identity]) == {}
        assert list(await client.fetch(PRODUCER, "team", "run", [identity])) == [identity]

    exchange(store, check)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"[]",
        b"\xff",
        b"{}",
        b'{"secret": 1, "namespace": "", "run": "", "tensors": []}',
        b'{"secret": "' + SECRET.encode() + b'", "namespace": "a", "run": "b", "tensors": 7}',
        b"x" * 20_000,
    ],
)
def test_a_wrong_message_ends_its_connection_alone(
    exchange: Callable[..., None], sockets: HostSockets, message: bytes
) -> None:
    store = new_store()
    identity = kept(store)

    def send() -> bytes:
        with sockets.connect(PRODUCER, 10.0) as connection:
            connection.sendall(message)
            return connection.recv(100)

    async def check(client: BlockClient) -> None:
        assert await asyncio.to_thread(send) == b""
        assert list(await client.fetch(PRODUCER, "team", "run", [identity])) == [identity]

    exchange(store, check)


def test_silent_connections_delay_no_other_and_are_closed(
    exchange: Callable[..., None], sockets: HostSockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_exchange, "EXCHANGE_TIMEOUT_S", 0.5)
    store = new_store()
    identity = kept(store)

    async def check(client: BlockClient) -> None:
        silent = [sockets.connect(PRODUCER, 10.0) for _ in range(8)]
        assert list(await client.fetch(PRODUCER, "team", "run", [identity])) == [identity]
        for connection in silent:
            with connection:
                assert await asyncio.to_thread(connection.recv, 1) == b""

    exchange(store, check)


def test_a_block_in_use_elsewhere_is_not_written_again(exchange: Callable[..., None]) -> None:
    store = new_store()
    first, second = kept(store), kept(store, ROWS + 1)
    originals = descriptors(store, first, second)

    async def check(client: BlockClient) -> None:
        blocks = await client.fetch(PRODUCER, "team", "run", [first, second])
        used = np.frombuffer(blocks.pop(second), np.float32)
        del blocks
        assert store.drop("team", "run", [first, second]) == 2
        others = [kept(store, ROWS * 0) for _ in range(3)]
        assert np.array_equal(used, ROWS + 1)
        del used

        def is_written_again() -> bool:
            store.drop("team", "run", others)
            others[:] = [kept(store)]
            return bool(descriptors(store, *others) & originals)

        await asyncio.to_thread(wait_until, is_written_again)

    exchange(store, check)


def test_connections_beyond_the_limit_are_closed_at_once(
    exchange: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_exchange, "MAX_CONNECTIONS", 1)
    store = new_store()
    identity = kept(store)

    async def check(client: BlockClient) -> None:
        held = await client.fetch(PRODUCER, "team", "run", [identity])
        assert await client.fetch(PRODUCER, "team", "run", [identity]) == {}
        assert list(held) == [identity]

    exchange(store, check)


def test_blocks_are_bounded_and_further_tensors_are_kept_in_plain_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.serving.tensor_store.max_blocks", lambda: 1)
    store = new_store()
    first = kept(store)
    second = kept(store)
    assert store.find_block("team", "run", first) is not None
    assert store.find_block("team", "run", second) is None
    assert store.find("team", "run", second) is not None
    assert store.drop("team", "run", [first, second]) == 2
    assert store.find_block("team", "run", kept(store)) is not None


def test_a_killed_pods_socket_is_removed_by_who_asks_and_by_the_next_pod(
    sockets: HostSockets, tmp_path: Path
) -> None:
    folder = str(next(tmp_path.glob("long*")) / "host")

    def ask() -> None:
        with pytest.raises(ConnectionRefusedError):
            sockets.connect(PRODUCER, 1.0)

    def start() -> None:
        sockets.listen("10.0.0.9:1").close()

    for remove in (start, ask):
        process = subprocess.Popen(
            [sys.executable, "-c", LISTENER, folder, PRODUCER],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        sockets.connect(PRODUCER, 10.0).close()
        process.kill()
        process.wait()
        process.stdout.close()
        assert sockets.may_have(PRODUCER)
        remove()
        assert not sockets.may_have(PRODUCER)


def test_a_peer_of_another_user_is_refused(
    sockets: HostSockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sockets.listen(PRODUCER):
        user = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: user)
        with pytest.raises(PermissionError, match=f"must be of user {user}, is of user"):
            sockets.connect(PRODUCER, 1.0)


def test_a_file_in_place_of_a_socket_is_no_pod(sockets: HostSockets, tmp_path: Path) -> None:
    listener = sockets.listen(PRODUCER)
    listener.close()
    (path,) = next(tmp_path.glob("long*")).glob("host/*.socket")
    path.unlink()
    path.write_text("")
    with pytest.raises(ConnectionRefusedError):
        sockets.connect(PRODUCER, 1.0)
    with sockets.listen(PRODUCER) as listening, sockets.connect(PRODUCER, 1.0) as connection:
        assert isinstance(listening, socket.socket)
        assert connection.gettimeout() == 1.0
