"""Bodies for workflows and graphs have the limits of inference bodies, before the scheduler."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

import pytest

from tests import servers
from tests.gateway.gateway_harness import exchange_bytes, read_response

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
PROMPT_S = 20.0
PATHS = (b"PUT /v1/workflows/w", b"POST /v1/workflows/w:run", b"POST /serving/default/graph/")


@pytest.fixture(scope="module")
def gateway(
    redis: servers.RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[servers.Gateway]:
    """Its scheduler cannot be reached: what is refused here was refused before."""
    with servers.gateway(
        tmp_path_factory.mktemp("gateway"), redis_url=redis.url, pool="workflow-bodies",
        body_timeout=1.0, min_body_rate=100_000, buffer_bytes=MIB, held_body_bytes=3 * MIB,
        spool_bytes=8 * MIB, workflows_url=f"http://127.0.0.1:{servers.free_port()}",
    ) as started:  # fmt: skip
        yield started


def head_of(request: bytes, length: int) -> bytes:
    return b"%b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (request, length)


@pytest.mark.parametrize("request_line", PATHS)
def test_a_body_that_trickles_is_408(gateway: servers.Gateway, request_line: bytes) -> None:
    began_s = time.monotonic()
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as connection:
        connection.sendall(head_of(request_line, 500_000))
        connection.settimeout(0.2)
        response = b""
        while not response and time.monotonic() - began_s < 60:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                response = connection.recv(65536)
    assert response.startswith(b"HTTP/1.1 408 "), response
    assert b"body-too-slow" in response
    assert time.monotonic() - began_s < PROMPT_S


def test_bodies_have_the_common_budget_of_all_requests(gateway: servers.Gateway) -> None:
    responses = []
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            address = ("127.0.0.1", gateway.port)
            connection = stack.enter_context(socket.create_connection(address, timeout=60))
            connection.sendall(head_of(PATHS[1], 900_000) + b"x" * 800_000)
            connection.settimeout(0.1)
            with contextlib.suppress(TimeoutError):
                responses.append(connection.recv(65536))
    assert responses
    assert responses[0].startswith(b"HTTP/1.1 503 "), responses
    assert b"bodies-full" in responses[0]


def test_a_declared_length_over_the_limit_is_refused_unread(gateway: servers.Gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as connection:
        connection.sendall(head_of(PATHS[0], 17 * MIB))
        assert read_response(connection).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_leaves_within_its_body_leaves_no_traceback(
    gateway: servers.Gateway,
) -> None:
    for request_line in PATHS:
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as connection:
            connection.sendall(head_of(request_line, 1000) + b"x")
    whole = exchange_bytes(gateway.port, head_of(PATHS[0], 1) + b"x", timeout_s=60)
    assert whole.startswith(b"HTTP/1.1 503 "), whole
    assert "Traceback" not in gateway.log


@pytest.mark.parametrize("namespace", [b"%E6%BC%A2", b"%20default", b"A", b"a:b", b"-", b"n" * 64])
def test_what_cannot_be_a_namespace_is_refused(gateway: servers.Gateway, namespace: bytes) -> None:
    target = b"POST /serving/%b/x/v1/workflows/w:run" % namespace
    response = exchange_bytes(gateway.port, head_of(target, 2) + b"{}", timeout_s=60)
    assert response.startswith(b"HTTP/1.1 400 "), response
