"""Headers of requests: which are read, forwarded and dropped."""

import math
import random
import re
from dataclasses import dataclass
from typing import Final, TypeVar

from common.shown_value import shown
from gateway.errors import BadRequest
from registry.domain.policy_names import ROUTING, SELECTION

Headers = list[tuple[bytes, bytes]]
Read = TypeVar("Read")

MAX_KNOWN: Final = 1024
_MAX_KNOWN_BYTES: Final = 2048
MAX_KNOWN_HEADERS: Final = 64
"""Of tiny ones, each takes a hundred bytes and more: 400 in each head were 50 MB."""
HOP_BY_HOP: Final = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
        b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    )
)  # fmt: skip
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
_MAX_DEADLINE_MS: Final = 86_400_000


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
        return RequestHeaders(
            self.forwarded,
            self.request_id or f"{random.getrandbits(128):032x}",
            self.content_length,
            self.deadline_s,
            self.policy,
            self.selection_policy,
            self.seed,
            self.place_at,
            self.step_header,
            self.secret,
        )


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
            hop_by_hop |= _connection_options(value)
        elif name.startswith(PILOTLIGHT):
            _read_pilotlight(read, name, value)
            if name in _FORWARDED:
                lines += (name, b": ", value, b"\r\n")
        elif name not in _NOT_FORWARDED:
            lines += (name, b": ", value, b"\r\n")
    read.forwarded = b"".join(lines if not hop_by_hop else _without(lines, hop_by_hop))
    return read


def _connection_options(value: bytes) -> frozenset[bytes]:
    """Headers that `connection` declares to be hop-by-hop (RFC 9110, section 7.6.1)."""
    if value.lower() in _USUAL_CONNECTION:
        return _NO_NAMES
    return frozenset(option.strip().lower() for option in value.split(b","))


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
    if not 0 < number <= _MAX_DEADLINE_MS:
        allowed = f"a positive number of milliseconds up to {_MAX_DEADLINE_MS}"
        raise BadRequest(f"header {name} must be {allowed}, was {shown(value)}")
    return number
