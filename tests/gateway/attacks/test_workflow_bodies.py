"""Bodies for workflows and graphs have the limits of inference bodies, before the scheduler."""

import contextlib
import select
import socket
import time
from collections.abc import Iterator

import pytest

from tests import servers
from tests.gateway.gateway_harness import exchange_bytes, read_response

MIB = 1 << 20
LONGEST_S = 60.0
PATHS = (b"PUT /v1/workflows/w", b"POST /v1/workflows/w:run", b"POST /serving/default/graph/")


@pytest.fixture(scope="module")
def gateway(
    redis: servers.RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[servers.Gateway]:
    """Its scheduler cannot be reached: what is refused here was refused before."""
    with servers.gateway(
        tmp_path_factory.mktemp("gateway"),
        redis_url=redis.url,
        pool="workflow-bodies",
        held_body_bytes=20 * MIB,
        workflows_url=f"http://127.0.0.1:{servers.free_port()}",
    ) as started:
        yield started


@pytest.fixture(scope="module")
def impatient(
    redis: servers.RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[servers.Gateway]:
    with servers.gateway(
        tmp_path_factory.mktemp("impatient"),
        redis_url=redis.url,
        pool="workflow-bodies",
        program=("tests.with_constants", "gateway.http.body:MIN_BODY_RATE=100000", "gateway"),
        body_timeout=1.0,
        workflows_url=f"http://127.0.0.1:{servers.free_port()}",
    ) as started:
        yield started


def head_of(request: bytes, length: int) -> bytes:
    return b"%b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (request, length)


def assert_closed(connection: socket.socket, response: bytes) -> None:
    """The rest of the response says so once, and nothing follows, no reset either."""
    while chunk := connection.recv(65536):
        response += chunk
    assert response.count(b"\r\nconnection: close\r\n") == 1, response
    assert response.count(b"HTTP/1.1") == 1, response


@pytest.mark.slow
@pytest.mark.parametrize("request_line", PATHS)
def test_a_body_that_trickles_is_408(impatient: servers.Gateway, request_line: bytes) -> None:
    began_s = time.monotonic()
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=60) as connection:
        connection.sendall(head_of(request_line, 500_000))
        connection.settimeout(0.2)
        response = b""
        while not response and time.monotonic() - began_s < LONGEST_S:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                response = connection.recv(65536)
        connection.settimeout(60)
        assert_closed(connection, response)
    assert response.startswith(b"HTTP/1.1 408 "), response
    assert b"body-too-slow" in response


def test_bodies_have_the_common_budget_of_all_requests(gateway: servers.Gateway) -> None:
    data = head_of(PATHS[1], 6 * MIB) + b"x" * 5 * MIB
    with contextlib.ExitStack() as stack:
        sending = []
        for _ in range(5):
            address = ("127.0.0.1", gateway.port)
            sending.append(stack.enter_context(socket.create_connection(address, timeout=60)))
            sending[-1].sendall(data)
        refused, _, _ = select.select(sending, [], [], 60)
        response = read_response(refused[0])
    assert response.startswith(b"HTTP/1.1 503 "), response
    assert b"bodies-full" in response


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        *((path, 413) for path in PATHS),
        pytest.param(b"POST /nothing", 404, id="no-such-path"),
        pytest.param(b"POST /v1/workflows", 405, id="no-such-method"),
    ],
)
def test_a_declared_length_over_the_limit_is_refused_unread(
    gateway: servers.Gateway, request_line: bytes, status: int
) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as connection:
        connection.sendall(head_of(request_line, 200 * MIB))
        response = read_response(connection)
        assert response.startswith(b"HTTP/1.1 %d " % status), response
        assert status != 413 or b"16777216 bytes (fixed for workflows and graphs)" in response
        connection.sendall(bytes(10 * MIB))
        assert_closed(connection, response)


@pytest.mark.parametrize("request_line", PATHS)
def test_a_chunked_body_is_refused_at_the_limit(
    gateway: servers.Gateway, request_line: bytes
) -> None:
    head, chunk = b"%b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", bytes(MIB)
    sent, response = 0, b""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as connection:
        connection.sendall(head % request_line)
        while not response and sent < 200:
            connection.sendall(b"%x\r\n%b\r\n" % (MIB, chunk))
            sent += 1
            if select.select([connection], [], [], 0.01)[0]:
                response = read_response(connection)
        assert_closed(connection, response)
    assert response.startswith(b"HTTP/1.1 413 "), response
    assert sent < 40


def test_a_body_that_waits_for_a_refused_request_is_not_awaited(gateway: servers.Gateway) -> None:
    head = head_of(b"POST /nothing", 5).replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n")
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as connection:
        connection.sendall(head)
        response = read_response(connection)
        assert response.startswith(b"HTTP/1.1 404 "), response
        assert_closed(connection, response)


def test_a_short_body_that_nobody_reads_keeps_its_connection(gateway: servers.Gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as connection:
        for _ in range(2):
            connection.sendall(head_of(b"POST /nothing", 5))
            assert read_response(connection).startswith(b"HTTP/1.1 404 ")
            connection.sendall(b"later")


def test_a_client_that_leaves_within_its_body_leaves_no_traceback(gateway: servers.Gateway) -> None:
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
