"""What responses say: times of the stages, gRPC codes, and whether Knative's queue-proxy answered.

Times are in the header `server-timing`, of pods and of gateways. Every response of a pod's
container carries `x-pilotlight-pod`; error responses that queue-proxy sends in its place do not.
Source: `pkg/queue` of knative.dev/serving 0.48: 502 with Go's error text when the container does
not respond, 503 when `containerConcurrency` and its queue are full.
"""

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Final

CODE_OF_STATUS: Final[Mapping[int, str]] = {
    HTTPStatus.BAD_REQUEST: "INVALID_ARGUMENT",
    HTTPStatus.UNAUTHORIZED: "UNAUTHENTICATED",
    HTTPStatus.FORBIDDEN: "PERMISSION_DENIED",
    HTTPStatus.NOT_FOUND: "NOT_FOUND",
    HTTPStatus.REQUEST_TIMEOUT: "DEADLINE_EXCEEDED",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "RESOURCE_EXHAUSTED",
    HTTPStatus.UNPROCESSABLE_ENTITY: "FAILED_PRECONDITION",
    HTTPStatus.TOO_MANY_REQUESTS: "RESOURCE_EXHAUSTED",
    HTTPStatus.NOT_IMPLEMENTED: "UNIMPLEMENTED",
    HTTPStatus.BAD_GATEWAY: "UNAVAILABLE",
    HTTPStatus.SERVICE_UNAVAILABLE: "UNAVAILABLE",
    HTTPStatus.GATEWAY_TIMEOUT: "DEADLINE_EXCEEDED",
    HTTPStatus.INSUFFICIENT_STORAGE: "FAILED_PRECONDITION",
}
OTHER: Final = "INTERNAL"
MAX_DETAIL_CHARACTERS: Final = 1000
"""Maximum length of an error's message: it is sent in a header, which gRPC limits to 8 KiB."""
MAX_NAME_CHARACTERS: Final = 512


_STAGES: Final = ("load", "preprocess", "infer", "postprocess")
_USUAL_TIMING: Final = re.compile(
    ", ".join(rf"{name};dur=(\d{{1,12}}\.\d{{1,9}})" for name in _STAGES).encode()
)
"""As Pilotlight's pods write it."""


def usual_times_ms(value: bytes) -> tuple[float, float, float, float] | None:
    """Milliseconds of load, preprocess, infer and postprocess, if just these are told."""
    usual = _USUAL_TIMING.fullmatch(value)
    if usual is None:
        return None
    load, preprocess, infer, postprocess = usual.groups()
    return float(load), float(preprocess), float(infer), float(postprocess)


def parse_server_timing(value: str) -> dict[str, float]:
    """Milliseconds by name; entries without a finite `dur` are left out."""
    usual = usual_times_ms(value.encode(errors="replace"))
    if usual is not None:
        return dict(zip(_STAGES, usual, strict=True))
    durations: dict[str, float] = {}
    for entry in value.replace("; ", ";").split(","):
        name, found, duration = entry.partition(";dur=")
        if found:
            try:
                milliseconds = float(duration.partition(";")[0])
            except ValueError:
                continue
            if math.isfinite(milliseconds):
                durations[name.partition(";")[0].strip()] = milliseconds
    return durations


FAILURE_STATUSES: Final = frozenset((502, 503))
"""Of queue-proxy. Others, such as 504 after the pool's `timeout`, are passed to the client."""
MAX_BODY_BYTES: Final = 4096
"""Bytes to read of such a response, which is one line of text."""


class QueueProxyFailure(StrEnum):
    """Why the container sent no response."""

    NOT_REACHED = "not-reached"
    """Nothing listens behind the queue-proxy: the container did not get the request."""
    BROKEN = "broken-off"
    """The connection to the container broke: the request may have been executed."""
    FULL = "full"
    """More requests than `containerConcurrency`: the container did not get the request."""


def classify_failure(status: int, body: bytes) -> QueueProxyFailure:
    """Classify a response without `x-pilotlight-pod` and with one of `FAILURE_STATUSES`."""
    if status == 503:
        return QueueProxyFailure.FULL
    if body.startswith(b"dial "):
        return QueueProxyFailure.NOT_REACHED
    return QueueProxyFailure.BROKEN


def code_of(status: int) -> str:
    return CODE_OF_STATUS.get(status, OTHER)
