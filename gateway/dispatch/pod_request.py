"""A request as it is sent to its pod: the client's headers, the gateway's, and the body."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.upstream.pod_connection import PodConnectionLost

if TYPE_CHECKING:
    from gateway.dispatch.dispatcher import Placement
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
    if not reservation.is_local:
        lines += (b"\r\nx-pilotlight-reservation: ", reservation.id.encode())
    if reservation.load_token:
        lines.append(b"\r\nx-pilotlight-load-token: %d" % reservation.load_token)
    if reservation.predict is not reservation.entry:
        lines += (b"\r\nx-pilotlight-predict: ", reservation.predict.address.encode())
    if body.is_complete:
        lines.append(b"\r\ncontent-length: %d\r\n\r\n" % body.received_bytes)
    elif body.content_length is not None:
        lines.append(b"\r\ncontent-length: %d\r\n\r\n" % body.content_length)
    else:
        lines.append(b"\r\ntransfer-encoding: chunked\r\n\r\n")
    return b"".join(lines)


async def send_request(connection: PodConnection, head: bytes, body: IncomingBody) -> None:
    """Send the request and wait for the head of the response. Raises PodConnectionLost."""
    if body.is_complete:
        connection.write_all(head, body.buffered)
    else:
        await _stream(connection, head, body)
    await connection.wait_head()


async def _stream(connection: PodConnection, head: bytes, body: IncomingBody) -> None:
    is_chunked = body.content_length is None
    connection.on_data = body.interrupt  # a response may come before the end of the body
    connection.write_all(head, [_frame(chunk, is_chunked) for chunk in body.buffered])
    async for chunk in body.stream_rest():
        if connection.has_head:
            connection.is_request_cut = True  # the pod responded without reading the rest
            return
        if connection.is_closed:
            raise PodConnectionLost("the pod closed the connection during the request body",
                                    was_reused=False)  # fmt: skip
        connection.write(_frame(chunk, is_chunked))
        await connection.drain()
    connection.on_data = None
    if is_chunked:
        connection.write(b"0\r\n\r\n")


def _frame(chunk: bytes, is_chunked: bool) -> bytes:
    if not is_chunked:
        return chunk
    return b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunk else b""
