"""What the gateway reads from the head of a pod's response, and what it forwards."""

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, NamedTuple

from common.http_headers import HOP_BY_HOP, Headers
from common.pod_responses import parse_server_timing
from gateway.http.headers import PILOTLIGHT, ReadHeads

LENGTH: Final = b"content-length"
TIMING: Final = b"server-timing"
_READ_ELSEWHERE: Final = HOP_BY_HOP | {LENGTH, TIMING, b"x-request-id"}
_SENT_AGAIN: Final = frozenset((b"no-memory", b"step-queue"))
"""Refusals that are told, since clients, or schedulers of workflows, may send the request again."""

FIRST_ERROR: Final = HTTPStatus.BAD_REQUEST.value
_LINE_END: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH_LINE: Final = b"\r\n%b: " % LENGTH
_TIMING_LINE: Final = b"\r\n%b: " % TIMING
_KEPT_OPEN: Final = (b"connection", b"keep-alive")
"""What is so without it."""

StageTimes = tuple[float, float, float, float]
"""Milliseconds of load, preprocess, infer and postprocess."""


@dataclass(slots=True)
class PodResponse:
    """Of a head, without the values that differ from response to response: length and times."""

    status: int
    headers: Headers
    forwarded: bytes = b""
    """Header lines for the client."""
    content_type: bytes = b""
    pod: bytes = b""
    predict_pod: bytes = b""
    start: str = "warm"
    not_executed: str | None = None
    error: bytes = b""
    """The name of the pod's error, such as `load-failed`."""
    is_usual: bool = False
    """Of a warm request that was executed."""
    heads: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    """By pod, policy and reason: the beginning of the client's head (`RequestTelemetry`)."""


def read_response(status: int, headers: Headers) -> PodResponse:
    """Split a response's headers into those to forward and those that the gateway writes itself."""
    lines: list[bytes] = []
    response = PodResponse(status, headers)
    for name, value in headers:
        if name.startswith(PILOTLIGHT):
            if name == b"x-pilotlight-start":
                response.start = value.decode("latin-1")
            elif name == b"x-pilotlight-pod":
                response.pod = value
            elif name == b"x-pilotlight-predict-pod":
                response.predict_pod = value
            elif name == b"x-pilotlight-not-executed":
                response.not_executed = value.decode("latin-1")
                if value in _SENT_AGAIN:
                    lines += (name, b": ", value, b"\r\n")
            elif name == b"x-pilotlight-error":
                response.error = value
            elif name == b"x-pilotlight-batch":
                lines += (name, b": ", value, b"\r\n")
        elif name not in _READ_ELSEWHERE:
            lines += (name, b": ", value, b"\r\n")
            if name == b"content-type" and not response.content_type:
                response.content_type = value
    response.forwarded = b"".join(lines)
    is_executed = status < FIRST_ERROR and response.not_executed is None
    response.is_usual = is_executed and response.start == "warm"
    return response


def stage_times_ms(timing: bytes) -> StageTimes:
    """Of a response's `server-timing`."""
    reported = parse_server_timing(timing.decode("latin-1")).get
    return (
        reported("load", 0.0),
        reported("preprocess", 0.0),
        reported("infer", 0.0),
        reported("postprocess", 0.0),
    )


class Shape(NamedTuple):
    """A response's head without the values of length and times: no head has a byte 0."""

    before: bytes
    between: bytes
    """The first value and the second, or the rest of the head where no times are told."""
    behind: bytes
    is_length_first: bool

    @property
    def has_timing(self) -> bool:
        return bool(self.behind)

    def split(self, data: bytes) -> tuple[bytes, bytes, bytes] | None:
        """Length, times and what came of the body, if the head has this shape."""
        before, between, behind, is_length_first = self
        at = len(before)
        end = data.find(_LINE_END, at)
        if not (data.startswith(before) and data.startswith(between, end)):
            return None
        first, second, rest = data[at:end], b"", end + len(between)
        if behind:
            at, end = rest, data.find(_LINE_END, rest)
            if not data.startswith(behind, end):
                return None
            second, rest = data[at:end], end + len(behind)
        return (first, second, data[rest:]) if is_length_first else (second, first, data[rest:])


def shape_of(data: bytes) -> Shape | None:
    """Of a head with a length; None if it is not complete."""
    head, end, _ = data.partition(_HEAD_END)
    lower = head.lower()
    places = sorted(
        (at + len(line), line is _LENGTH_LINE)
        for line in (_LENGTH_LINE, _TIMING_LINE)
        if (at := lower.find(line)) >= 0
    )
    if not end or not any(is_length for _, is_length in places):
        return None
    head += end
    (start, is_length_first), stop = places[0], head.find(_LINE_END, places[0][0])
    if len(places) == 1:
        return Shape(head[:start], head[stop:], b"", True)
    second = places[1][0]
    return Shape(
        head[:start], head[stop:second], head[head.find(_LINE_END, second) :], is_length_first
    )


class KnownResponses(ReadHeads[PodResponse]):
    """Heads that the parser has read, by their shapes.

    Those of one model's responses are the same within a second.
    """

    def of(self, shape: Shape | None) -> PodResponse | None:
        return None if shape is None else self.get(b"\0".join(shape[:3]))

    def keep(self, shape: Shape, response: PodResponse) -> None:
        """Keep the head of a response with a length, on a connection that is kept open.

        That of an interim response is not kept.
        """
        status, headers = response.status, response.headers
        names = {name for name, value in headers if (name, value) != _KEPT_OPEN}
        if not shape.before.startswith(b"HTTP/1.1 %d " % status) or status in (204, 304):
            return
        if len(names) < len(headers) - (_KEPT_OPEN in headers) or names & HOP_BY_HOP:
            return
        self.put(b"\0".join(shape[:3]), response, len(names))
