"""A request as it is sent to its pod: the client's headers, the gateway's, and the body."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.dispatch.placement import Placement
    from gateway.http.body import IncomingBody
    from gateway.http.headers import RequestHeaders
    from gateway.http.routes import ModelTarget
    from gateway.upstream.pod_connection import PodConnection


def request_head(
    target: ModelTarget,
    headers: RequestHeaders,
    placement: Placement,
    body: IncomingBody,
    *,
    left_ms: float,
    secret_line: bytes = b"",
) -> bytes:
    """Request line and headers; `left_ms` is the time until the deadline."""
    reservation = placement.reservation
    lines = [
        b"POST ", target.pod_path, b" HTTP/1.1\r\nhost: ", reservation.entry.address.encode(),
        b"\r\n", headers.forwarded,
        b"x-request-id: ", headers.request_id.encode(),
        b"\r\nx-pilotlight-model-name: ", target.name.encode(),
        b"\r\nx-pilotlight-generation: ", placement.spec.generation.encode(),
        b"\r\nx-pilotlight-deadline-ms: %d" % max(1, left_ms),
    ]  # fmt: skip
    name = b"attempt" if reservation.is_local else b"reservation"
    lines += (b"\r\nx-pilotlight-%b: " % name, reservation.id.encode())
    if not reservation.takes_slot:
        lines.append(b"\r\nx-pilotlight-step-queue: 1")
    if reservation.load_token:
        lines.append(b"\r\nx-pilotlight-load-token: %d" % reservation.load_token)
    if reservation.predict is not reservation.entry:
        lines += (b"\r\nx-pilotlight-predict: ", reservation.predict.address.encode())
    lines.append(secret_line)
    lines.append(b"\r\ncontent-length: %d\r\n\r\n" % body.received_bytes)
    return b"".join(lines)


def resent_head(head: bytes) -> bytes:
    """The head of a request that is sent again because its connection was lost.

    A pod that has begun the request refuses it.
    """
    return head[:-2] + b"x-pilotlight-resent: 1\r\n\r\n"


async def send_request(connection: PodConnection, head: bytes, body: IncomingBody) -> None:
    """Send the request and wait for the head of the response. Raises PodConnectionLost."""
    connection.write_all(head, body.buffered)
    if body.has_file:
        await _send_file(connection, body)
    await connection.wait_head()


async def _send_file(connection: PodConnection, body: IncomingBody) -> None:
    async with aclosing(body.pieces_of_file()) as pieces:
        async for piece in pieces:
            if connection.has_head:
                connection.is_request_cut = True  # the pod responded without reading the rest
                return
            connection.write(piece)
            await connection.drain()
