"""A request as it is sent to its pod: the client's headers, the gateway's, and the body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.dispatch.placement import Placement
    from gateway.http.body import IncomingBody
    from gateway.http.headers import RequestHeaders
    from gateway.http.targets import ModelTarget
    from gateway.upstream.pod_connection import PodConnection


_HEAD: Final = b"""\
POST %b HTTP/1.1\r
host: %b\r
%bx-request-id: %b\r
x-pilotlight-model-name: %b\r
x-pilotlight-generation: %b\r
x-pilotlight-deadline-ms: %d\r
x-pilotlight-%b: %b%b\r
content-length: %d\r
\r
"""


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
    entry = reservation.entry
    more = secret_line
    if not reservation.takes_slot:
        more += b"\r\nx-pilotlight-step-queue: 1"
    if reservation.load_token:
        more += b"\r\nx-pilotlight-load-token: %d" % reservation.load_token
    if reservation.predict is not entry:
        more += b"\r\nx-pilotlight-predict: %b" % reservation.predict.address.encode()
    return _HEAD % (
        target.pod_path, entry.address.encode(), headers.forwarded, headers.request_id.encode(),
        target.name.encode(), placement.spec.generation.encode(), max(1, left_ms),
        b"attempt" if reservation.is_local else b"reservation", reservation.id.encode(), more,
        body.received_bytes,
    )  # fmt: skip


def resent_head(head: bytes) -> bytes:
    """The head of a request that is sent again because its connection was lost.

    A pod that has begun the request refuses it.
    """
    return head[:-2] + b"x-pilotlight-resent: 1\r\n\r\n"


async def send_request(connection: PodConnection, head: bytes, body: IncomingBody) -> None:
    """Send the request and wait for the head of the response. Raises PodConnectionLost."""
    connection.start()
    connection.write(head, body.buffered)
    if body.has_file:
        await connection.send_rest(body.pieces_of_file())
    await connection.wait_head()
