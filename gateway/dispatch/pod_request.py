"""A request as it is sent to its pod: its head, what follows from it, the parts that all use."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from common.http_headers import Headers
from common.pod_secret import PodSecret
from gateway.authentication.access import without_credentials
from gateway.dispatch.placer import Placer
from gateway.dispatch.reservations import Placement, Reservation, Reservations
from gateway.dispatch.retries import RequestQuarantine, Retries
from gateway.errors import GatewayError
from gateway.http.body import HeldBodies, IncomingBody
from gateway.http.headers import KnownHead, RequestHeaders, read_headers
from gateway.http.pod_connection import PodConnection, PodConnectionPool
from gateway.http.prompts import has_prompt
from gateway.http.targets import ModelTarget, Verb
from gateway.request_task import Shutdown
from gateway.routing.route_request import is_plain
from gateway.telemetry.arrival_counter import ArrivalCounter
from gateway.telemetry.event_log import EventLog
from gateway.telemetry.explanations import Explanations
from gateway.telemetry.request_telemetry import RequestTelemetry
from registry.domain.cluster import ClusterState
from registry.domain.estimates import size_class
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
    """Send the request and wait for the head of the response. Raises PodConnectionLost.

    In pieces: with TLS, 64 MB at once would hold up all other requests for 0.2 s.
    """
    connection.start()
    pieces = body.pieces()
    connection.write(head, next(pieces, ()))
    for chunk, *more in pieces:
        await connection.drain()
        if connection.has_head:  # it did not wait for the body's end
            connection.cut()
            break
        connection.write(chunk, more)
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


Authorised = Callable[[ModelTarget, Headers], ModelTarget | None]

_NO_HEAD: Final = (None, b"")
ALLOWED_S: Final = 1.0
"""A credential that ends, or is taken back, opens nothing more after this time."""
_VERBS: Final = (Verb.PREDICT, Verb.INFER, None)


@dataclass(eq=False, slots=True)
class WarmRoute:
    """Of one head, until models change."""

    models_version: int
    is_usual: bool
    """Whether `WarmRequest` may serve requests with the head."""
    is_plain: bool
    """Whether the soonest pod may be certain, without its model's policy."""
    has_prompt: bool
    target: ModelTarget
    spec: ModelSpec
    key: str
    content_length: int
    size_class: int | None
    deadline_s: float | None
    read: RequestHeaders
    allowed_until_s: float
    """Loop time until which the head's credential, if any is needed, need not be looked at."""
    _heads: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    """By address of a pod: the pods' secret, and the beginning of the head with it."""

    def head_beginning(self, address: str, secret: PodSecret) -> bytes:
        """See `pod_request`; kept, as it changes with the model and the pods' secret alone."""
        line = secret.header_line
        known_line, beginning = self._heads.get(address, _NO_HEAD)
        if known_line is not line:
            beginning = head_beginning(
                self.target, self.read.forwarded, self.spec, address, line, self.content_length
            )
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            self._heads[address] = line, beginning
        return beginning


@dataclass(frozen=True, slots=True)
class WarmPath:
    """What all such requests of a gateway use."""

    context: RequestContext
    explanations: Explanations
    state: ClusterState
    registry_now_s: Callable[[], float]
    draw: Callable[[RequestHeaders], tuple[float, int]]
    """A new request's random number, and its own."""
    routes: "WarmRoutes"
    shutdown: Shutdown
    held: HeldBodies
    request_timeout_s: float


@dataclass(frozen=True, slots=True)
class WarmRoutes:
    state: ClusterState
    resolve_target: Callable[[bytes, bytes], ModelTarget | None]
    deadline_of: Callable[[float | None, ModelSpec], float | None]
    """A request's time, by what its header says and its model."""
    max_body_bytes: int
    """Of bodies that stay in memory."""
    authorised: Authorised | None = None
    """The target that the headers authorise a request to, or a GatewayError; it returns None if
    that is not known at once."""

    def route_of(self, head: KnownHead, loop_s: float) -> WarmRoute | None:
        """None: there is no such model, or requests with the head are or may be refused."""
        route: WarmRoute | None = head.route
        version = self.state.models_version
        if route is None or route.models_version != version or route.allowed_until_s <= loop_s:
            route = head.route = self._create_route(head, loop_s)
        return route

    def _create_route(self, head: KnownHead, loop_s: float) -> WarmRoute | None:
        state, target = self.state, self.resolve_target(head.path, head.host)
        if target is None or head.content_length > self.max_body_bytes:
            return None
        headers, allowed_until_s = head.headers, inf
        try:
            if self.authorised is not None:
                target = self.authorised(target, headers)
                headers, allowed_until_s = without_credentials(headers), loop_s + ALLOWED_S
            read = read_headers(headers)
        except GatewayError:
            return None
        record = None if target is None else state.models.get(target.model)
        if target is None or record is None:
            return None
        spec = record.serving
        is_usual = not (
            read.policy or read.selection_policy or read.step_header or read.secret or read.place_at
        )
        is_model = (
            target.is_named
            and target.verb in _VERBS
            and target.component is None
            and not target.canaries
            and target.model not in state.applications
        )
        reads_prompt = has_prompt(target, spec)
        return WarmRoute(
            state.models_version,
            is_usual and is_model and not spec.logger,
            is_plain(spec) and not reads_prompt,
            reads_prompt,
            target,
            spec,
            spec.key,
            head.content_length,
            size_class(head.content_length),
            self.deadline_of(read.deadline_s, spec),
            read,
            allowed_until_s,
        )
