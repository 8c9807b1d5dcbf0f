"""The headers of requests and answers: what is read, passed on, dropped and added."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from typing import Final

from gateway.errors import BadRequest
from registry.domain.model import RoutingPolicy

Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP: Final = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
        b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    )
)  # fmt: skip
_KNATIVES: Final = frozenset((b"k-network-probe", b"k-proxy-request"))
"""A pod's queue-proxy would answer the one itself, and leave requests with the other uncounted."""
_NOT_FORWARDED: Final = (
    _HOP_BY_HOP | _KNATIVES | {b"host", b"content-length", b"expect", b"x-request-id"}
)
_USUAL_CONNECTION: Final = frozenset((b"keep-alive", b"close"))
_NO_NAMES: Final[frozenset[bytes]] = frozenset()
_OURS: Final = b"x-pilotlight-"
"""Between gateway and pod these are commands: what a client sends under the prefix stays here."""
_FROM_CLIENT: Final = b"x-pilotlight-simulate"
"""The one exception: pods refuse it unless they were started for experiments."""
_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
_BLANKS: Final = b" \t"
"""The parser leaves them behind a value, of which they are no part (RFC 9110, section 5.5)."""
_LONGEST_DEADLINE_MS: Final = 86_400_000


@dataclass(slots=True)
class RequestHeaders:
    """What the gateway reads of a request's headers, and what it passes on."""

    passed: bytes = b""
    """Lines for the pod: the caller's headers, without those that end here."""
    request_id: str = ""
    content_length: int | None = None
    deadline_s: float | None = None
    policy: RoutingPolicy | None = None
    seed: int | None = None


def read_headers(headers: Headers) -> RequestHeaders:
    """Read what routing needs and what pods shall have. Raises BadRequest."""
    read = RequestHeaders()
    lines: list[bytes] = []
    named = _NO_NAMES
    for name, value in headers:
        if name == b"content-length":
            read.content_length = _whole("content-length", value, 1 << 50)
        elif name == b"x-request-id":
            read.request_id = _request_id(value)
        elif name == b"connection":
            named |= _named_by_connection(value)
        elif name.startswith(_OURS):
            _read_ours(read, name, value)
            if name == _FROM_CLIENT:
                lines += (name, b": ", value, b"\r\n")
        elif name not in _NOT_FORWARDED:
            lines += (name, b": ", value, b"\r\n")
    if not read.request_id:
        read.request_id = f"{random.getrandbits(128):032x}"  # unique, no secret: uuid4 costs 2 us
    read.passed = b"".join(lines if not named else _without(lines, named))
    return read


def _named_by_connection(value: bytes) -> frozenset[bytes]:
    """Headers that `connection` declares to be for one hop only (RFC 9110, section 7.6.1)."""
    if value.lower() in _USUAL_CONNECTION:
        return _NO_NAMES
    return frozenset(option.strip().lower() for option in value.split(b","))


def _without(lines: list[bytes], named: frozenset[bytes]) -> list[bytes]:
    whole = [lines[at : at + 4] for at in range(0, len(lines), 4)]
    return [part for line in whole if line[0] not in named for part in line]


def _read_ours(read: RequestHeaders, name: bytes, value: bytes) -> None:
    if name == b"x-pilotlight-policy":
        text = value.decode("latin-1")
        try:
            read.policy = RoutingPolicy(text)
        except ValueError:
            allowed = ", ".join(RoutingPolicy)
            raise BadRequest(
                f"header x-pilotlight-policy must be one of {allowed}, was {text!r}"
            ) from None
    elif name == b"x-pilotlight-deadline-ms":
        read.deadline_s = _milliseconds(name.decode(), value) / 1000
    elif name == b"x-pilotlight-seed":
        read.seed = _whole(name.decode(), value, 1 << 62)


def _request_id(value: bytes) -> str:
    value = value.rstrip(_BLANKS)
    if not _REQUEST_ID.fullmatch(value):
        raise BadRequest(
            f"header x-request-id must be 1 to 128 visible ASCII characters, was {value[:140]!r}"
        )
    return value.decode()


def _whole(name: str, value: bytes, most: int) -> int:
    value = value.rstrip(_BLANKS)
    if not value.isdigit() or len(value) > 20 or int(value) > most:
        raise BadRequest(f"header {name} must be a whole number up to {most}, was {value[:40]!r}")
    return int(value)


def _milliseconds(name: str, value: bytes) -> float:
    allowed = f"a positive number of milliseconds up to {_LONGEST_DEADLINE_MS}"
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number <= _LONGEST_DEADLINE_MS:
        raise BadRequest(f"header {name} must be {allowed}, was {value[:40]!r}")
    return number


@dataclass(slots=True)
class PodResponse:
    """What the gateway reads of an answer's headers; the rest passes as it is."""

    passed: list[bytes]
    """Header lines in pieces."""
    has_length: bool = False
    pod: bytes = b""
    predict_pod: bytes = b""
    start: str = "warm"
    stages_ms: dict[str, float] | None = None
    not_executed: str | None = None


def read_response(headers: Headers) -> PodResponse:
    """Split an answer's headers into what passes and what the gateway writes itself."""
    passed: list[bytes] = []
    answer = PodResponse(passed)
    for name, value in headers:
        if name == b"server-timing":
            answer.stages_ms = _read_timing(value)
        elif name.startswith(_OURS):
            if name == b"x-pilotlight-start":
                answer.start = value.decode("latin-1")
            elif name == b"x-pilotlight-pod":
                answer.pod = value
            elif name == b"x-pilotlight-predict-pod":
                answer.predict_pod = value
            elif name == b"x-pilotlight-not-executed":
                answer.not_executed = value.decode("latin-1")
        elif name not in _HOP_BY_HOP and name != b"x-request-id":
            passed += (name, b": ", value, b"\r\n")
            if name == b"content-length":
                answer.has_length = True
    return answer


def _read_timing(value: bytes) -> dict[str, float]:
    """Stages and milliseconds of a `server-timing` header; what it does not fit is left out."""
    stages: dict[str, float] = {}
    for part in value.decode("latin-1").split(","):
        name, found, duration = part.partition(";dur=")
        if found:
            try:
                stages[name.strip()] = float(duration)
            except ValueError:
                continue
    return stages
