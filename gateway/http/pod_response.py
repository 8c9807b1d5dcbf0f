"""What the gateway reads from the head of a pod's response, and what it forwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from common.pod_responses import parse_server_timing
from gateway.http.headers import HOP_BY_HOP, PILOTLIGHT, Headers, ReadHeads

LENGTH: Final = b"content-length"
TIMING: Final = b"server-timing"
_READ_ELSEWHERE: Final = HOP_BY_HOP | {LENGTH, TIMING, b"x-request-id"}
_SENT_AGAIN: Final = frozenset((b"no-memory", b"step-queue"))
"""Refusals that are told, since clients, or schedulers of workflows, may send the request again."""

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
    return response


def stage_times_ms(timing: bytes) -> StageTimes:
    """Of a response's `server-timing`."""
    reported = parse_server_timing(timing.decode("latin-1")).get
    return (
        reported("load", 0.0), reported("preprocess", 0.0), reported("infer", 0.0),
        reported("postprocess", 0.0),
    )  # fmt: skip


class KnownResponses(ReadHeads[PodResponse]):
    """Heads that the parser has read, by their bytes without the values of length and times.

    Those of one model's responses are the same within a second.
    """

    def keep(self, key: bytes, response: PodResponse) -> None:
        """Keep the head of a response with a length, on a connection that is kept open.

        `key`: as it was sent, but for the lines of the two values; that of an interim response is
        not kept.
        """
        status, names = response.status, {name for name, _ in response.headers}
        if not key.startswith(b"HTTP/1.1 %d " % status) or status in (204, 304):
            return
        if len(names) < len(response.headers) or names & HOP_BY_HOP:
            return
        self.put(key, response, len(names))
