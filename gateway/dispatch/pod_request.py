"""A request as it is sent to its pod: headers and body; and the parts that all requests use."""

import asyncio
from dataclasses import dataclass
from typing import Final

from gateway.dispatch.placement import Placement, Reservation
from gateway.dispatch.placer import Placer
from gateway.dispatch.reservations import Reservations
from gateway.dispatch.retries import RequestQuarantine, Retries
from gateway.http.body import IncomingBody
from gateway.http.targets import ModelTarget
from gateway.telemetry.arrival_counter import ArrivalCounter
from gateway.telemetry.request_telemetry import RequestTelemetry
from gateway.upstream.event_log import EventLog
from gateway.upstream.pod_connection import PodConnection, PodConnectionPool
from registry.domain.model import ModelSpec

MAX_HEADS: Final = 64
"""Limit of cached heads for one kind of request, one per pod."""
_BEGINNING: Final = b"""\
POST %b HTTP/1.1\r
host: %b\r
%bcontent-length: %d\r
x-pilotlight-model-name: %b\r
x-pilotlight-generation: %b%b\r
x-request-id: """
_REST: Final = b"""\
%b\r
x-pilotlight-deadline-ms: %d\r
x-pilotlight-%b: %b%b\r
\r
"""


def head_beginning(
    target: ModelTarget,
    forwarded: bytes,
    spec: ModelSpec,
    address: str,
    secret_line: bytes,
    content_length: int,
) -> bytes:
    """The part of a head that similar requests share; `forwarded`: the client's header lines."""
    return _BEGINNING % (
        target.pod_path,
        address.encode(),
        forwarded,
        content_length,
        target.name.encode(),
        spec.generation.encode(),
        secret_line,
    )


def head_rest(reservation: Reservation, request_id: str, left_ms: float) -> bytes:
    """The part of a head after `head_beginning`; `left_ms`: time until the deadline."""
    more = b""
    if not reservation.takes_slot:
        more += b"\r\nx-pilotlight-step-queue: 1"
    if reservation.load_token:
        more += b"\r\nx-pilotlight-load-token: %d" % reservation.load_token
    if reservation.predict is not reservation.entry:
        more += b"\r\nx-pilotlight-predict: %b" % reservation.predict.address.encode()
    return _REST % (
        request_id.encode(),
        max(1, left_ms),
        b"attempt" if reservation.is_local else b"reservation",
        reservation.id.encode(),
        more,
    )


def resent_head(head: bytes) -> bytes:
    """The head of a request sent again after a lost connection; a pod that began it refuses it."""
    return head[:-2] + b"x-pilotlight-resent: 1\r\n\r\n"


async def send_request(connection: PodConnection, head: bytes, body: IncomingBody) -> None:
    """Send the request and wait for the head of the response. Raises PodConnectionLost."""
    connection.start()
    connection.write(head, body.buffered)
    if body.has_file:
        await connection.send_rest(body.pieces_of_file())
    await connection.wait_head()


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The parts of the gateway that every request uses."""

    loop: asyncio.AbstractEventLoop
    placer: Placer[Placement]
    reservations: Reservations
    retries: Retries
    connections: PodConnectionPool
    telemetry: RequestTelemetry
    arrival_counter: ArrivalCounter
    quarantine: RequestQuarantine
    events: EventLog
    stall_s: float
    """How long a client may read nothing of its response."""
