"""Raw bytes of kept tensors, from real servers into their own memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from starlette.applications import Starlette

from common.http_server import HttpServer
from common.inference_protocol.encodings import from_raw
from common.inference_protocol.tensors import (
    BF16,
    MAX_IDENTITIES,
    Tensor,
    TensorSpec,
    numeric_tensor,
)
from common.pod_secret import PodSecret
from common.tls import PartTls
from runtime.errors import InputLost
from runtime.protocols.asgi_app import PodApplication
from runtime.protocols.routes import tensor_routes
from runtime.serving import tensor_exchange
from runtime.serving.tensor_exchange import TensorExchange
from runtime.serving.tensor_store import TensorStore
from tests.certificates import write_certificates

ROWS = np.arange(1 << 20, dtype=np.float32)
"""4 MiB."""
FLAGS = np.arange(70_001) % 3 == 0
SECRET = "s" * 32


def run(check: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(check(), 60))


@contextlib.asynccontextmanager
async def serving(store: TensorStore, secret: PodSecret, tls: PartTls) -> AsyncIterator[str]:
    """The address of a server of a pod's routes for tensors."""
    with ThreadPoolExecutor(1) as threads:
        app = PodApplication(Starlette(routes=tensor_routes(store, threads)), (), secret)
        server = HttpServer(app, host="127.0.0.1", tls=tls.server)
        async with asyncio.TaskGroup() as tasks:
            serve = tasks.create_task(server.serve())
            async with asyncio.timeout(30):
                while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0.001)
            yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            server.stop()
            await serve


@contextlib.asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[str]:
    """The address of a server that sends each connection's request the next bytes, and waits."""
    left = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(left.pop(0))
        if left:
            writer.close()
        else:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@contextlib.contextmanager
def client(secret: PodSecret | None = None, tls: PartTls | None = None) -> Any:
    opened = TensorExchange(secret or PodSecret(), tls or PartTls())
    try:
        yield opened
    finally:
        opened.close()


def keep(store: TensorStore, tensor: Tensor) -> str:
    identity = store.keep("team", "run", tensor)
    assert identity is not None
    return identity


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_tensors_of_a_step_come_in_one_response_into_their_own_memory(
    tmp_path: Path, is_encrypted: bool
) -> None:
    folder = write_certificates(tmp_path) if is_encrypted else ""
    tls = PartTls(str(folder))
    (tmp_path / "secrets").write_text(SECRET)
    secret, store = PodSecret(str(tmp_path / "secrets")), TensorStore(1 << 30)
    names = [
        keep(store, numeric_tensor("rows", ROWS)),
        keep(store, numeric_tensor("flags", FLAGS)),
        keep(store, Tensor("halves", BF16, np.arange(256, dtype=np.float32))),
    ]
    sizes = [ROWS.nbytes, FLAGS.nbytes, 512]

    async def check() -> None:
        async with serving(store, secret, tls) as address:
            with client(secret, tls) as opened:
                for _ in range(3):
                    path = f"/v2/tensors/team/run/{','.join(names)}"
                    rows, flags, halves = await opened.fetch_bytes(address, path, sizes)
                    assert np.array_equal(np.frombuffer(rows, np.float32), ROWS)
                    assert np.array_equal(np.frombuffer(flags, np.bool_), FLAGS)
                    spec = TensorSpec("halves", BF16, (256,), "inputs[0]")
                    assert np.array_equal(from_raw(halves, spec).data, np.arange(256))

    run(check)


def test_others_secrets_runs_and_too_many_names_get_nothing(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text(SECRET)
    secret, store = PodSecret(str(tmp_path / "secrets")), TensorStore(1 << 30)
    identity = keep(store, numeric_tensor("rows", ROWS))

    async def check() -> None:
        async with serving(store, secret, PartTls()) as address:
            for sender, path, status in (
                (PodSecret(), f"team/run/{identity}", 401),
                (secret, f"team/other/{identity}", 404),
                (secret, f"other/run/{identity}", 404),
                (secret, f"team/run/{identity},{'0' * 32}", 404),
                (secret, "team/run/" + ",".join([identity] * (MAX_IDENTITIES + 1)), 400),
            ):
                with client(sender) as opened, pytest.raises(InputLost, match=f"status {status}"):
                    await opened.fetch_bytes(address, f"/v2/tensors/{path}", [ROWS.nbytes])

    run(check)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n", "content-length must be 8, was 7"),
        (b"SSH-2.0\r\n\r\n", "Expected HTTP/"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n1234", "nothing came for 0.5 s after"),
        (b"", "nothing came for 0.5 s after 0 bytes"),
    ],
)
def test_a_response_that_cannot_be_used_is_a_lost_input(
    answer: bytes, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_exchange, "TRANSFER_STALL_S", 0.5)

    async def check() -> None:
        async with answering(answer) as address:
            with client() as opened, pytest.raises(InputLost, match=text):
                await opened.fetch_bytes(address, "/x", [8])

    run(check)


def test_an_end_within_the_body_is_a_lost_input() -> None:
    async def check() -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n1234"
        async with answering(head, b"") as address:
            with client() as opened, pytest.raises(InputLost, match="ended the connection"):
                await opened.fetch_bytes(address, "/x", [8])

    run(check)


def test_a_pod_that_is_gone_is_a_lost_input() -> None:
    async def check() -> None:
        async with answering() as address:
            pass
        with client() as opened, pytest.raises(InputLost, match="cannot send it: NotConnected"):
            await opened.fetch_bytes(address, "/x", [8])

    run(check)
