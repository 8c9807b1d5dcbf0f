"""Heads of requests: whether they are HTTP/1.1 that is served; headers read, forwarded and dropped.

The parser checks the syntax; lengths, codings, the Host and the texts of refusals are here.
"""

import math
import random
import re
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from common.http_headers import HOP_BY_HOP, Headers
from common.shown_value import shown
from gateway.errors import BadRequest
from registry.policy_names import ROUTING, SELECTION

Read = TypeVar("Read")

MAX_KNOWN: Final = 1024
_MAX_KNOWN_BYTES: Final = 2048
MAX_KNOWN_HEADERS: Final = 64
"""Of tiny ones, each takes a hundred bytes and more: 400 in each head were 50 MB."""
_KNATIVE: Final = frozenset((b"k-network-probe", b"k-proxy-request"))
"""A queue-proxy would respond to the first itself, and not count requests with the second."""
_KSERVE: Final = frozenset((b"kserve-isvc-name", b"kserve-isvc-namespace"))
"""Set by KServe's router, and here for transformers and explainers."""
_NOT_FORWARDED: Final = (
    HOP_BY_HOP | _KNATIVE | _KSERVE | {b"host", b"content-length", b"expect", b"x-request-id"}
)
_USUAL_CONNECTION: Final = frozenset((b"keep-alive", b"close"))
_NO_NAMES: Final[frozenset[bytes]] = frozenset()
PILOTLIGHT: Final = b"x-pilotlight-"
"""Commands from gateway to pod: headers with this prefix from clients are not forwarded."""
_SIMULATE: Final = b"x-pilotlight-simulate"
"""Forwarded: pods refuse it unless started for experiments."""
_RUN: Final = b"x-pilotlight-run"
"""Forwarded for schedulers of workflows: the run that the request is a step of."""
_FOLLOWING: Final = b"x-pilotlight-following-ms"
"""Forwarded for schedulers: what the run is expected to take after this step."""
_FORWARDED: Final = frozenset((_SIMULATE, _RUN, _FOLLOWING))
SECRET: Final = b"x-pilotlight-secret"
PROTOBUF: Final = b"application/x-protobuf"
"""Content type at which pods read a body as V2's gRPC message, and answer with one."""
_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
_BLANKS: Final = b" \t"
"""The parser keeps trailing blanks, which are no part of a value (RFC 9110, section 5.5)."""
MAX_DEADLINE_MS: Final = 86_400_000


class ReadHeads(dict[bytes, Read]):
    """What was read of heads, by their bytes. Bounded: with too many all are forgotten."""

    def put(self, head: bytes, read: Read, header_count: int) -> None:
        """Keep it, unless the head is a large one."""
        if len(head) > _MAX_KNOWN_BYTES or header_count > MAX_KNOWN_HEADERS:
            return
        if len(self) >= MAX_KNOWN:
            self.clear()
        self[head] = read


@dataclass(slots=True)
class RequestHeaders:
    """What the gateway reads from a request's headers, and what it forwards."""

    forwarded: bytes = b""
    """Header lines for the pod."""
    request_id: str = ""
    content_length: int | None = None
    deadline_s: float | None = None
    policy: str | None = None
    selection_policy: str | None = None
    """In place of `policy`, for applications."""
    seed: int | None = None
    place_at: str = ""
    """The pod that a scheduler of workflows has chosen."""
    step_header: bytes = b""
    """One that only schedulers of workflows may send."""
    secret: bytes | None = None

    def with_id(self) -> "RequestHeaders":
        """A copy for one request, which has a new id if the client gave none."""
        # an id needs to be unique, not secret: uuid4 costs 2 us
        return replace(self, request_id=self.request_id or f"{random.getrandbits(128):032x}")


def read_headers(headers: Headers) -> RequestHeaders:
    """Split a request's headers; without an id if they have none. Raises BadRequest."""
    read = RequestHeaders()
    lines: list[bytes] = []
    hop_by_hop = _NO_NAMES
    for name, value in headers:
        if name == b"content-length":
            read.content_length = _parse_whole("content-length", value, 1 << 50)
        elif name == b"x-request-id":
            read.request_id = _parse_request_id(value)
        elif name == b"connection":
            if value.lower() not in _USUAL_CONNECTION:  # hop-by-hop (RFC 9110, section 7.6.1)
                hop_by_hop |= {option.strip().lower() for option in value.split(b",")}
        elif name.startswith(PILOTLIGHT):
            _read_pilotlight(read, name, value)
            if name in _FORWARDED:
                lines += (name, b": ", value, b"\r\n")
        elif name not in _NOT_FORWARDED:
            lines += (name, b": ", value, b"\r\n")
    read.forwarded = b"".join(lines if not hop_by_hop else _without(lines, hop_by_hop))
    return read


def _without(lines: list[bytes], names: frozenset[bytes]) -> list[bytes]:
    whole = [lines[at : at + 4] for at in range(0, len(lines), 4)]
    return [part for line in whole if line[0] not in names for part in line]


def _read_pilotlight(read: RequestHeaders, name: bytes, value: bytes) -> None:
    if name == b"x-pilotlight-policy":
        text = value.decode("latin-1")
        if text in ROUTING:
            read.policy = text
        elif text in SELECTION:
            read.selection_policy = text
        else:
            raise BadRequest(
                f"header x-pilotlight-policy must be one of {ROUTING}, for an application one of "
                f"{SELECTION}, was {text!r}"
            )
    elif name == b"x-pilotlight-deadline-ms":
        read.deadline_s = _parse_milliseconds(name.decode(), value) / 1000
    elif name == b"x-pilotlight-seed":
        read.seed = _parse_whole(name.decode(), value, 1 << 62)
    elif name == b"x-pilotlight-place-at":
        read.place_at, read.step_header = value.decode("latin-1").strip(), name
    elif name in (_RUN, _FOLLOWING):
        read.step_header = name
    elif name == SECRET:
        read.secret = value


def _parse_request_id(value: bytes) -> str:
    value = value.rstrip(_BLANKS)
    if not _REQUEST_ID.fullmatch(value):
        raise BadRequest(
            f"header x-request-id must be 1 to 128 visible ASCII characters, was {shown(value)}"
        )
    return value.decode()


def _parse_whole(name: str, value: bytes, maximum: int) -> int:
    value = value.rstrip(_BLANKS)
    if not value.isdigit() or len(value) > 20 or int(value) > maximum:
        raise BadRequest(
            f"header {name} must be a whole number up to {maximum}, was {shown(value)}"
        )
    return int(value)


def _parse_milliseconds(name: str, value: bytes) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number <= MAX_DEADLINE_MS:
        allowed = f"a positive number of milliseconds up to {MAX_DEADLINE_MS}"
        raise BadRequest(f"header {name} must be {allowed}, was {shown(value)}")
    return number


MAX_HEAD_BYTES: Final = 64 * 1024
"""Request line and headers together, trailers, or one chunk's extensions.

Of headers behind another request, one read of the socket may exceed it before it is checked.
"""
MAX_TARGET_BYTES: Final = 32 * 1024
"""Of the head: the request target, which is a path and a query."""
_LINE_BYTES: Final = 4
"""Of a header line beside name and value: a colon, a blank and the line's end."""
_REASONS: Final = {
    400: b"bad-request",
    414: b"target-too-long",
    431: b"head-too-long",
    501: b"not-implemented",
}
MAX_HOST_BYTES: Final = 255
MAX_LABEL_BYTES: Final = 63


@dataclass(slots=True)
class KnownHead:
    """What the parser has read from a request's head: the same bytes need not be parsed again.

    Of a usual request of HTTP/1.1 with a `content-length`, whose connection is kept alive.
    """

    path: bytes
    host: bytes
    headers: Headers
    content_length: int
    read: RequestHeaders | None = None
    """What `read_headers` reads from it, once it has; without an id if the client gave none."""
    route: Any = None
    """What follows from it for requests to warm models (`gateway.dispatch.pod_request`)."""


class KnownHeads(ReadHeads[KnownHead]):
    """Heads of inference requests. Most clients repeat theirs, but for the length."""

    def keep(
        self, head: bytes, path: bytes, host: bytes, headers: Headers, content_length: int
    ) -> None:
        """Keep one whose request was sent in one piece, unless it bears an id, or much else.

        `content_length`: what came behind it. It must be the body, and nothing else.
        """
        known = dict(headers)
        if b"x-request-id" in known:
            return
        if int(known.get(b"content-length", -1)) != content_length:
            return
        self.put(head, KnownHead(path, host, headers, content_length), len(headers))


class InvalidFraming(Exception):
    """Ends parsing: of what the client has sent and sends, nothing more is read."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self._status = status

    @property
    def response(self) -> bytes:
        content = orjson.dumps({"error": str(self)})
        return b"".join(
            (
                STATUS_LINE[self._status],
                b"content-type: application/json\r\nx-pilotlight-reason: ",
                _REASONS[self._status],
                b"\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(content),
                content,
            )
        )


def target_too_long(byte_count: int) -> InvalidFraming:
    """`byte_count`: of the part that was received."""
    return InvalidFraming(
        f"the request target may have {MAX_TARGET_BYTES} bytes, had {byte_count} or more", 414
    )


def head_too_long(byte_count: int) -> InvalidFraming:
    return InvalidFraming(
        "request line and headers, trailers or a chunk's extensions may have"
        f" {MAX_HEAD_BYTES} bytes, had {byte_count}",
        431,
    )


def check_length(headers: Headers, target: bytes) -> None:
    """Check a complete head. Raises InvalidFraming."""
    lines = sum(len(name) + len(value) + _LINE_BYTES for name, value in headers)
    if len(target) + lines > MAX_HEAD_BYTES:
        raise head_too_long(len(target) + lines)


def check_coding(value: bytes) -> None:
    """Check a head's `transfer-encoding`. Raises InvalidFraming.

    The parser looks at the last coding alone, and would take the others' output for the body
    (RFC 9112, section 6.1).
    """
    if value.rstrip(b" ").lower() != b"chunked":
        raise InvalidFraming(
            f"header transfer-encoding must be 'chunked' and nothing else, was {shown(value)}", 501
        )


def not_http(headers: Headers, *, is_in_body: bool) -> InvalidFraming:
    """For what the parser refused; `headers` are those that it has read."""
    if is_in_body:
        return InvalidFraming(
            "the body is not valid HTTP/1.1: a chunk is its length in hexadecimal digits, its bytes"
            " and a CRLF behind both; behind the last one are header lines, if any, and a CRLF"
        )
    if headers:
        return InvalidFraming(
            "the headers are not valid HTTP/1.1: each is 'name: value' in one line with CRLF at its"
            " end; there is one content-length in digits, or one transfer-encoding, not both; the"
            f" last valid header was {shown(headers[-1][0])}"
        )
    return InvalidFraming(
        "the request is not valid HTTP/1.1: it begins with 'METHOD TARGET HTTP/1.1' and CRLF, with"
        " a known method and a target of visible ASCII characters; then come lines 'name: value'"
    )


def host_error(host: bytes, count: int, *, is_required: bool) -> str | None:
    """What is wrong with the last of `count` Host headers; None if nothing is.

    There is exactly one, and short (RFC 9112, section 3.2; RFC 1035, 2.3.4).
    """
    if count != 1 and (count or is_required):
        return f"a request must have exactly one host header, had {count}"
    if len(host) > MAX_HOST_BYTES:
        return f"header host may have {MAX_HOST_BYTES} bytes, has {len(host)}"
    if len(host) > MAX_LABEL_BYTES:
        longest = max(map(len, host.partition(b":")[0].split(b".")))
        if longest > MAX_LABEL_BYTES:
            return f"a label of header host may have {MAX_LABEL_BYTES} bytes, has {longest}"
    return None
