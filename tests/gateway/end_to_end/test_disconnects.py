"""Clients that disconnect at any time leave no slot taken."""

import contextlib
import socket
from collections.abc import Iterator

import httpx
import pytest

from registry.domain.model import ModelSpec, RoutingPolicy
from tests.gateway.gateway_harness import GatewayHarness, wait_counts

QUEUEING = RoutingPolicy.COLOCATION_QUEUEING
MIB = 1 << 20


@contextlib.contextmanager
def raw_request(
    harness: GatewayHarness, spec: ModelSpec, wishes: str = "", *, size: int = 2
) -> Iterator[socket.socket]:
    """A connection on which a request was sent; closed at the end of the block."""
    head = (
        f"POST /v1/models/{spec.name.name}:predict HTTP/1.1\r\nhost: x\r\nx-test: {wishes}\r\n"
        f"content-length: {size}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", harness.gateway.port), timeout=60) as connection:
        connection.sendall(head.encode() + b"x" * size)
        yield connection


@pytest.mark.parametrize("size", [2, 300_000, 3 * MIB])
def test_a_client_that_disconnects_during_execution_frees_the_slot(
    harness: GatewayHarness, size: int
) -> None:
    spec, pods = harness.start_warm_pod()
    before = harness.metric("pilotlight_gateway_client_disconnects_total")
    with raw_request(harness, spec, "delay=hold", size=size):
        wait_counts(pods, "pod-a", busy=1)
    wait_counts(pods, "pod-a", disconnected=1, busy=0)
    harness.wait_idle(pods)
    assert harness.predict(spec).status_code == 200
    assert harness.metric("pilotlight_gateway_client_disconnects_total") == before + 1


def test_a_client_that_disconnects_in_the_queue_is_not_served(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod(routing=QUEUEING)
    held = harness.hold_pod(pods, spec, x_test="delay=hold")
    with raw_request(harness, spec):
        harness.wait_queued(1)
    harness.wait_queued(0)
    pods.control("pod-a", "release")
    assert held.result().status_code == 200
    harness.wait_idle(pods)
    assert pods.counts("pod-a")["asked"] == 1


def test_a_client_that_disconnects_during_the_response_frees_the_slot(
    harness: GatewayHarness,
) -> None:
    spec, pods = harness.start_warm_pod()
    with raw_request(harness, spec, "pieces=100000") as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        assert harness.metric("pilotlight_gateway_reservations") == 1
    harness.wait_idle(pods)
    assert harness.predict(spec).status_code == 200


def test_clients_that_disconnect_at_any_time_leak_no_slot(harness: GatewayHarness) -> None:
    spec = harness.declare(routing=QUEUEING)
    pods = harness.start_pods("pod-a", "pod-b", slots=2)

    def come_and_go(timeout_s: float) -> None:
        with contextlib.suppress(httpx.TimeoutException):
            httpx.post(
                harness.url_of(spec),
                content=b"{}",
                headers={"x-test": "delay=0.02"},
                timeout=timeout_s,
                trust_env=False,
                verify=False,
            )

    list(harness.threads.map(come_and_go, [0.001 * (1 + n % 40) for n in range(80)]))
    harness.wait_idle(pods)
    harness.wait_queued(0)
    assert harness.predict(spec).status_code == 200
