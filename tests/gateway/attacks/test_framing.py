"""Trailers, chunks and pipelined bytes that cost more than they should, or displace a response."""

import select
import socket
import time

import pytest

from registry.domain.model import ModelSpec
from tests.gateway.gateway_harness import GatewayHarness, exchange_bytes, read_response
from tests.servers import cpu_s

MIB = 1 << 20


def head_of(spec: ModelSpec, *lines: bytes) -> bytes:
    path = f"/v1/models/{spec.name.name}:predict".encode()
    return b"\r\n".join([b"POST %b HTTP/1.1" % path, b"host: x", *lines, b"", b""])


def chunked(spec: ModelSpec) -> bytes:
    return head_of(spec, b"transfer-encoding: chunked")


@pytest.mark.parametrize(
    "beginning",
    [
        pytest.param(b"2\r\nok\r\n0\r\nx-trailer: ", id="trailer"),
        pytest.param(b"2;extension=", id="chunk-extension"),
        pytest.param(b"0\r\nhost: a\r\nx-trailer: ", id="trailer-without-body"),
    ],
)
def test_endless_trailers_are_refused_soon(
    shared: GatewayHarness, spec: ModelSpec, beginning: bytes
) -> None:
    used_s = cpu_s(shared.gateway.process.pid)
    with socket.create_connection(("127.0.0.1", shared.gateway.port), timeout=60) as connection:
        connection.sendall(chunked(spec) + beginning + b"v" * MIB)
        assert read_response(connection).startswith(b"HTTP/1.1 431 ")
        connection.sendall(b"v" * 80 * MIB)  # dropped
        assert connection.recv(1) == b""
    assert shared.predict(spec).status_code == 200
    assert cpu_s(shared.gateway.process.pid) - used_s < 2.0


def test_endless_trailers_get_431(shared: GatewayHarness, spec: ModelSpec) -> None:
    with socket.create_connection(("127.0.0.1", shared.gateway.port), timeout=60) as connection:
        connection.sendall(chunked(spec) + b"2\r\nok\r\n0\r\n")
        while not select.select([connection], [], [], 0.1)[0]:  # a read is checked at its end
            connection.sendall(b"x-trailer: v\r\n" * 5000)
        assert read_response(connection).startswith(b"HTTP/1.1 431 ")


def test_a_body_of_tiny_chunks_is_served(shared: GatewayHarness, spec: ModelSpec) -> None:
    body = chunked(spec) + b"1\r\na\r\n" * MIB + b"0\r\n\r\n"
    response = exchange_bytes(shared.gateway.port, body)
    head, _, content = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    assert content == b"a" * MIB


def test_a_long_body_of_tiny_chunks_is_served(shared: GatewayHarness, spec: ModelSpec) -> None:
    body = chunked(spec) + b"3\r\nabc\r\n" * MIB + b"0\r\n\r\n"
    response = exchange_bytes(shared.gateway.port, body)
    assert response.startswith(b"HTTP/1.1 200 "), response[:300]
    assert response.endswith(b"abc" * 1000)


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param(b"NONSENSE\r\n\r\n", id="nonsense"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", id="two-hosts"),
        pytest.param(b"GET /" + b"x" * 70_000, id="long-head"),
        pytest.param(
            b"POST /v2/models/m/infer HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz",
            id="bad-body",
        ),
    ],
)
def test_bytes_behind_a_running_request_do_not_replace_its_response(
    shared: GatewayHarness, spec: ModelSpec, behind: bytes
) -> None:
    request = head_of(spec, b"x-test: delay=0.5", b"content-length: 2") + b"ok"
    with socket.create_connection(("127.0.0.1", shared.gateway.port), timeout=60) as connection:
        connection.sendall(request)
        time.sleep(0.1)  # the request is at the pod
        connection.sendall(behind)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    assert received.startswith(b"HTTP/1.1 200 "), received
    assert received.count(b"HTTP/1.1 4") == 1, received
    assert received.index(b"\r\n\r\nok") < received.index(b"HTTP/1.1 4")


def test_pipelined_requests_before_an_invalid_one_are_served_in_order(
    shared: GatewayHarness, spec: ModelSpec
) -> None:
    request = head_of(spec, b"x-test: delay=0.1", b"content-length: 1")
    with socket.create_connection(("127.0.0.1", shared.gateway.port), timeout=60) as connection:
        connection.sendall(request + b"1" + request + b"2" + b"NONSENSE\r\n\r\n")
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    statuses = [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"200", b"400"]


def test_a_running_request_with_bytes_behind_it_ends_with_its_client(
    harness: GatewayHarness,
) -> None:
    spec, pods = harness.start_warm_pod()
    with socket.create_connection(("127.0.0.1", harness.gateway.port), timeout=60) as connection:
        connection.sendall(head_of(spec, b"x-test: around=hold", b"content-length: 0"))
        time.sleep(0.1)
        connection.sendall(b"NONSENSE\r\n\r\n" + b"x" * 1000)
        time.sleep(0.1)
    harness.wait_idle(pods)


def test_the_next_request_of_a_connection_is_read_after_trailers(
    shared: GatewayHarness, spec: ModelSpec
) -> None:
    body = b"2\r\nok\r\n0\r\nhost: other\r\nx-sum: 1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", shared.gateway.port), timeout=60) as connection:
        for _ in range(3):
            connection.sendall(chunked(spec) + body)
            assert read_response(connection).startswith(b"HTTP/1.1 200 ")
