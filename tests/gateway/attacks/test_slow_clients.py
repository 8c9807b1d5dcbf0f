"""Clients that send or read slowly, or ask for much time: they hold no slot, and are cut off."""

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from registry.domain.model import ModelSpec, RoutingPolicy
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, exchange_bytes, read_response

pytestmark = pytest.mark.slow

MIB = 1 << 20
PROMPT_S = 25.0
"""Below the body timeout of 30 s, for which a slow client once held its slot."""


@pytest.fixture(scope="module")
def strict(another_gateway: Callable[..., servers.Gateway]) -> servers.Gateway:
    """With times that a test can wait for."""
    program = ("tests.with_constants", "gateway.http.body:MIN_BODY_RATE=100000", "gateway")
    return another_gateway(body_timeout=1.0, request_timeout=2.0, program=program)


@pytest.fixture(scope="module")
def small(another_gateway: Callable[..., servers.Gateway]) -> servers.Gateway:
    """With little room for bodies."""
    return another_gateway(body_timeout=600, request_timeout=600, held_body_bytes=3 * MIB)


def head_of(spec: ModelSpec, length: int, *lines: bytes) -> bytes:
    path = f"/v1/models/{spec.name.name}:predict".encode()
    declared = b"content-length: %d" % length
    return b"\r\n".join([b"POST %b HTTP/1.1" % path, b"host: x", declared, *lines, b"", b""])


@contextlib.contextmanager
def sending(port: int, data: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(data)
        yield connection


def test_a_client_that_sends_slowly_holds_no_slot(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod(routing=RoutingPolicy.COLOCATION_QUEUEING)
    slow = head_of(spec, 3 * MIB) + b"x" * (2 * MIB)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(sending(harness.gateway.port, slow))
        began_s = time.monotonic()
        assert harness.predict(spec).status_code == 200
        assert time.monotonic() - began_s < PROMPT_S
        assert pods.counts("pod-a")["asked"] == 1
    harness.wait_idle(pods)


def test_a_client_that_reads_slowly_holds_no_slot(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod(routing=RoutingPolicy.COLOCATION_QUEUEING)
    body = b"y" * (40 * MIB)
    with sending(harness.gateway.port, head_of(spec, len(body)) + body) as connection:
        assert connection.recv(1)
        began_s = time.monotonic()
        assert harness.predict(spec).status_code == 200
        assert time.monotonic() - began_s < PROMPT_S
    harness.wait_idle(pods)


def test_a_client_that_reads_nothing_of_a_stream_is_cut_off(
    harness: GatewayHarness, strict: servers.Gateway
) -> None:
    """A stream holds its slot, since the pod still works."""
    spec, pods = harness.start_warm_pod(routing=RoutingPolicy.COLOCATION_QUEUEING)
    harness.wait_synced(strict)
    attack = head_of(spec, 0, b"x-test: pieces=1000")
    with sending(strict.port, attack) as connection:
        assert connection.recv(1)
        began_s = time.monotonic()
        assert harness.predict(spec).status_code == 200
        assert time.monotonic() - began_s < PROMPT_S
    harness.wait_idle(pods)


def test_a_client_that_reads_slowly_but_steadily_gets_its_response(
    harness: GatewayHarness, another_gateway: Callable[..., servers.Gateway]
) -> None:
    """It reads on well below the rate at which the system frees its buffer in that time."""
    spec, _ = harness.start_warm_pod()
    patient = another_gateway(body_timeout=2.0)
    harness.wait_synced(patient)
    body = b"y" * (16 * MIB)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        connection.connect(("127.0.0.1", patient.port))
        connection.settimeout(60)
        connection.sendall(head_of(spec, len(body)) + body)
        received = bytearray(connection.recv(16 << 10))
        began_s = time.monotonic()
        while time.monotonic() - began_s < 5 * 2.0:
            received += connection.recv(16 << 10)
            time.sleep(0.1)  # the pace of this client
        while len(received) < len(body) and (more := connection.recv(MIB)):
            received += more
    assert received.endswith(b"y")
    assert len(received) > len(body)


def test_a_header_does_not_extend_the_request_timeout(
    harness: GatewayHarness, strict: servers.Gateway
) -> None:
    spec, pods = harness.start_warm_pod()
    harness.wait_synced(strict)
    began_s = time.monotonic()
    lines = (b"x-pilotlight-deadline-ms: 86400000", b"x-test: around=hold")
    response = exchange_bytes(strict.port, head_of(spec, 0, *lines))
    assert response.startswith(b"HTTP/1.1 504 "), response
    assert time.monotonic() - began_s < PROMPT_S
    harness.wait_idle(pods)


@pytest.mark.parametrize("size", [50_000, 500_000, 3 * MIB])
def test_a_body_that_trickles_is_408(
    harness: GatewayHarness, strict: servers.Gateway, size: int
) -> None:
    spec, pods = harness.start_warm_pod()
    harness.wait_synced(strict)
    began_s = time.monotonic()
    with sending(strict.port, head_of(spec, size)) as connection:
        connection.settimeout(0.2)
        response = b""
        while not response and time.monotonic() - began_s < 60:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                response = connection.recv(65536)
    assert response.startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 504 ")), response
    assert time.monotonic() - began_s < PROMPT_S
    assert pods.counts("pod-a")["asked"] == 0


@pytest.mark.parametrize("beginning", [b"", b"{", b'{"prompt": "' + b"x" * 10_000])
def test_an_openai_body_that_names_no_model_in_time_is_408(
    harness: GatewayHarness, strict: servers.Gateway, beginning: bytes
) -> None:
    head = b"POST /openai/v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 20000\r\n\r\n"
    began_s = time.monotonic()
    with sending(strict.port, head + beginning) as connection:
        assert read_response(connection).startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - began_s < PROMPT_S


def test_held_bodies_have_a_common_budget_that_small_requests_do_not_need(
    harness: GatewayHarness, small: servers.Gateway
) -> None:
    spec, pods = harness.start_warm_pod(routing=RoutingPolicy.COLOCATION_QUEUEING)
    harness.wait_synced(small)
    data = head_of(spec, 900_000) + b"x" * 800_000
    with contextlib.ExitStack() as stack:
        senders = [stack.enter_context(sending(small.port, data)) for _ in range(5)]
        refused, _, _ = select.select(senders, [], [], 60)
        begun = read_response(refused[0])
        url = harness.url_of(spec, small)
        assert harness.client.post(url, content=b"{}").status_code == 200
        declared = exchange_bytes(small.port, head_of(spec, 900_000))
    for response in (begun, declared):
        assert response.startswith(b"HTTP/1.1 503 "), response
        assert b"retry-after: 1" in response
        assert b"--held-body-bytes" in response
    harness.wait_idle(pods)
    assert harness.client.post(url, content=b"x" * 900_000).status_code == 200


def test_a_request_is_not_resent_after_the_pod_has_worked_on_it(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod()
    assert harness.predict(spec).status_code == 200
    response = harness.predict(spec, x_test="delay=0.5,close=worked")
    assert response.status_code == 502
    assert pods.counts("pod-a")["executed"] == 2
    harness.wait_idle(pods)
