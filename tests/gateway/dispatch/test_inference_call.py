"""Calls without a client connection: placed, sent and retried at pods that the test serves."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from gateway.dispatch.dispatcher import LoopTimers
from gateway.dispatch.inference_call import CallContext, InferenceCall
from gateway.dispatch.lost_pods import LostPods
from gateway.dispatch.passive_health import PassiveHealth
from gateway.dispatch.retries import Retries
from gateway.errors import NoPodAccepted, Rejected
from gateway.http.body import BodyLimits, IncomingBody
from gateway.http.headers import RequestHeaders
from gateway.http.held_bodies import HeldBodies
from gateway.http.routes import parse_path, target_of
from gateway.routing.route_request import IncomingRequest
from gateway.telemetry.arrival_counter import ArrivalCounter
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.request_telemetry import RequestTelemetry
from gateway.upstream.event_log import EventLog
from gateway.upstream.pod_connection import PodConnectionPool
from registry.domain.model import RoutingPolicy, Tier
from registry.domain.pod import PodInfo
from tests.gateway.dispatcher_harness import DispatcherHarness, with_dispatcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from registry.domain.model import ModelSpec

BODY = b'{"inputs": [1]}'
SERVED = "200 OK\r\nx-pilotlight-pod: pod"
REFUSED = "429 Too Many\r\nx-pilotlight-not-executed: slots"


class MemoryBody:
    """A complete body in memory, as a workflow's step has it."""

    is_complete = True

    def take_chunks(self) -> list[bytes]:
        return [BODY]

    async def receive_chunks(self) -> list[bytes]:
        raise AssertionError("the body is complete")


@asynccontextmanager
async def serving_pod(
    harness: DispatcherHarness, name: str, spec: ModelSpec, *responses: str
) -> AsyncIterator[list[bytes]]:
    """A pod, warm for the model, with one connection per response; yields the bodies it read."""
    bodies: list[bytes] = []
    remaining = list(responses)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        bodies.append(await reader.readexactly(len(BODY)))
        head = remaining.pop(0)
        writer.write(
            f"HTTP/1.1 {head}\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok".encode()
        )
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    info = PodInfo(name, f"127.0.0.1:{port}", name, slots=1)
    epoch = await harness.registry.register_pod(info, lease_ttl_s=60)
    await harness.registry.set_tier(name, epoch, spec.key, Tier.DEVICE, 1)
    async with server:
        yield bodies


def call_of(harness: DispatcherHarness, spec: ModelSpec) -> InferenceCall:
    path = f"/serving/{spec.name.namespace}/{spec.name.name}/v1/models/{spec.name.name}:predict"
    target = target_of(parse_path(path, "", harness.watch.state.models))
    health = PassiveHealth(LoopTimers(), harness.dispatcher.notify_change)
    connections = PodConnectionPool()
    context = CallContext(
        harness.dispatcher, harness.reservations, Retries(health), connections,
        RequestTelemetry(GatewayMetrics()),
        ArrivalCounter(harness.registry, "g", harness.dispatcher.queue_stats, lambda: 0),
        LostPods(time.monotonic),
        EventLog(connections, lambda _: None, lambda *_: True),
    )  # fmt: skip
    body = IncomingBody(
        MemoryBody(), len(BODY), BodyLimits(1000, 1000, 1.0), HeldBodies(1000, 1000)
    )
    assert body.receive_now()
    now_s = harness.watch.registry_now_s()
    request = IncomingRequest("step-1", spec.name, now_s, 0.0, 1)
    return InferenceCall(context, target, RequestHeaders(request_id="step-1"), request, body)


def until_s() -> float:
    return asyncio.get_running_loop().time() + 30.0


@with_dispatcher
async def test_a_call_is_served_without_a_client(harness: DispatcherHarness) -> None:
    spec = await harness.declare("m", routing=RoutingPolicy.COLOCATION)
    async with serving_pod(harness, "pod-a", spec, SERVED) as bodies:
        call = call_of(harness, spec)
        await call.send(until_s())
        assert (call.connection.status, call.placement.policy) == (200, "colocation")
        await call.connection.wait_body()
        assert call.connection.take_body() == [b"ok"]
        assert harness.reservations.held_total == 1
        call.end(is_complete=True)
    assert bodies == [BODY]
    assert harness.reservations.held_total == 0


@with_dispatcher
async def test_a_refused_call_is_sent_again(harness: DispatcherHarness) -> None:
    spec = await harness.declare("m", routing=RoutingPolicy.COLOCATION_QUEUEING)
    async with serving_pod(harness, "pod-a", spec, REFUSED, REFUSED, SERVED) as bodies:
        call = call_of(harness, spec)
        await call.send(until_s())
        assert call.connection.status == 200
        call.end(is_complete=False)
    assert bodies == [BODY] * 3
    assert harness.reservations.held_total == 0


@with_dispatcher
async def test_a_call_that_every_pod_refuses_fails(harness: DispatcherHarness) -> None:
    spec = await harness.declare("m", routing=RoutingPolicy.COLOCATION_QUEUEING)
    async with serving_pod(harness, "pod-a", spec, *[REFUSED] * 10) as bodies:
        with pytest.raises(NoPodAccepted, match="in 10 attempts"):
            await call_of(harness, spec).send(until_s())
    assert len(bodies) == 10
    assert harness.reservations.held_total == 0


@with_dispatcher
async def test_a_call_without_pods_is_rejected_at_its_queue_timeout(
    harness: DispatcherHarness,
) -> None:
    spec = await harness.declare("m", queue_timeout_s=0.01)
    with pytest.raises(Rejected, match="queue-timeout"):
        await call_of(harness, spec).send(until_s())
