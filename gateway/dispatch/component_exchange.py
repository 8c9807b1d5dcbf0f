"""One request of a client that a model's transformer or explainer serves.

The component calls the model back through a gateway, where that request is placed, counted and
limited as any other: here the request is passed on, and the response streamed back.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gateway.dispatch.pod_request import send_request
from gateway.errors import ComponentLoop, ComponentLost, ComponentUnreachable, Rejected
from gateway.http.body import IncomingBody
from gateway.http.error_responses import InferenceClient, wait_for_reader
from gateway.http.headers import RequestHeaders
from gateway.http.pod_connection import (
    PodConnection,
    PodConnectionLost,
    PodConnectionPool,
    PodUnreachable,
)
from gateway.http.targets import ComponentTarget
from gateway.routing.decision import Reason
from gateway.telemetry.request_telemetry import RequestTelemetry

MAX_ONGOING: Final = 1024
"""Requests that may be at a component at a time, from one gateway."""
MAX_IDLE_S: Final = 2.0
"""KServe's servers, which run on uvicorn, close a connection that is idle for 5 s: a request that
comes at that moment would be lost."""
MAX_OF_ID: Final = 16
"""Requests of one id that may be at a component at a time. A component that calls the model at
another address than it was given gets its own request back, and KServe's passes the id on. Clients
may repeat ids, too."""


@dataclass(slots=True)
class ComponentCalls:
    """What all requests to components share."""

    telemetry: RequestTelemetry
    connections: PodConnectionPool = field(
        default_factory=partial(PodConnectionPool, max_idle_s=MAX_IDLE_S)
    )
    """Without the pods' secret and TLS: components are the tenants' own."""
    _ongoing: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """By component's address, and by that and id."""

    @contextmanager
    def counted(self, target: ComponentTarget, request_id: str) -> Iterator[None]:
        """Count a request while it lasts. Raises Rejected, ComponentLoop."""
        address = target.address
        keys = (address,), (address, request_id)
        total, of_id = (self._ongoing[key] for key in keys)
        if total >= MAX_ONGOING:
            raise Rejected(
                Reason.QUEUE_FULL,
                f"{MAX_ONGOING} requests of this gateway are at the {target.component}",
                retry_after_s=1.0,
            )
        if of_id >= MAX_OF_ID:
            raise ComponentLoop(
                f"the request came back from the {target.component} at {address}"
                " several times: it must call the model at its --predictor_host"
            )
        for key in keys:
            self._ongoing[key] += 1
        try:
            yield
        finally:
            for key in keys:
                self._ongoing[key] -= 1
                if not self._ongoing[key]:
                    del self._ongoing[key]


@dataclass(eq=False)
class ComponentExchange:
    """Serves one request by a component; as `Request` otherwise."""

    calls: ComponentCalls
    client: InferenceClient
    target: ComponentTarget
    read: RequestHeaders
    body: IncomingBody
    callback_token: bytes
    """In place of the caller's credential; empty: none."""
    stall_s: float
    policy = None

    @property
    def awaited(self) -> str:
        return self.target.component

    async def run(self, until_s: float) -> None:
        """Serve the request until loop time `until_s`. Raises GatewayError."""
        if not self.body.receive_now():
            await self.body.receive()
        started_s = time.perf_counter()
        with self.calls.counted(self.target, self.read.request_id):
            try:
                await self._exchange(until_s, started_s)
            except PodConnectionLost:
                raise ComponentLost(
                    f"the {self.target.component} at {self.target.address} closed the connection"
                    " before the end of its response"
                ) from None

    async def _exchange(self, until_s: float, started_s: float) -> None:
        connections, address = self.calls.connections, self.target.address
        connection = connections.take_idle(address) or await self._connect()
        try:
            left_s = until_s - self.client.loop.time()
            await send_request(connection, self._head(left_s), self.body)
            await self._respond(connection, started_s)
        finally:
            connections.release(address, connection)

    async def _connect(self) -> PodConnection:
        target = self.target
        try:
            return await self.calls.connections.connect(target.address)
        except PodUnreachable as error:
            raise ComponentUnreachable(
                f"no connection to the {target.component} at {target.address}: {error.__cause__}",
                retry_after_s=1.0,
            ) from None

    def _head(self, left_s: float) -> bytes:
        model = self.client.target.model
        lines = [
            b"POST ",
            self.target.path,
            b" HTTP/1.1\r\nhost: ",
            self.target.host.encode(),
            b"\r\n",
            self.read.forwarded,
            b"kserve-isvc-name: ",
            model.name.encode(),
            b"\r\nkserve-isvc-namespace: ",
            model.namespace.encode(),
            b"\r\nx-request-id: ",
            self.read.request_id.encode(),
            b"\r\nx-pilotlight-deadline-ms: %d" % max(1, left_s * 1000),
        ]
        if self.callback_token:
            lines += (b"\r\nauthorization: Bearer ", self.callback_token)
        lines.append(b"\r\ncontent-length: %d\r\n\r\n" % self.body.received_bytes)
        return b"".join(lines)

    async def _respond(self, connection: PodConnection, started_s: float) -> None:
        client, response = self.client, connection.response
        if not connection.has_body:
            await connection.wait_body()  # an error until here still gets a clear response
        lines = self.calls.telemetry.served_by_component(
            self.read.request_id,
            client.target.label,
            self.target.component,
            connection.status,
            took_s=time.perf_counter() - started_s,
        )
        client.start_response(response.status, response.forwarded + lines, connection.length)
        while not self._forward_body(connection):
            await wait_for_reader(client, self.stall_s)
            await connection.wait_body()

    def _forward_body(self, connection: PodConnection) -> bool:
        """Send the client the received part of the response; returns whether it was the last."""
        body = b"".join(connection.take_body())
        self.client.write_body(body, is_last=connection.is_complete)
        return connection.is_complete
