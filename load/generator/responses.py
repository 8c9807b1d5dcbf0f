"""The result of one request: times, status, and the headers and errors of its response."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from common.pod_responses import parse_server_timing
from registry.domain.pod import STAGES

MAX_KEPT_BYTES: Final = 4096
"""Bytes kept of the end of a response, for the text of an error."""
_MAX_ERROR_LENGTH: Final = 300
_PILOTLIGHT_HEADERS: Final = {
    b"x-pilotlight-pod": "entry_pod",
    b"x-pilotlight-predict-pod": "predict_pod",
    b"x-pilotlight-policy": "policy",
    b"x-pilotlight-reason": "reason",
    b"x-pilotlight-start": "start",
    b"x-pilotlight-variant": "variant",
}


@dataclass(slots=True)
class RequestResult:
    """Filled in while a request runs. Times in seconds since the run's start, None if not reached.

    The fields from `policy` on are filled in only for Pilotlight's servers.
    """

    sent_s: float | None = None
    first_byte_s: float | None = None
    finished_s: float | None = None
    status: int = 0
    """0: no response."""
    generated_tokens: int | None = None
    """None: the server does not report them."""
    error: str | None = None
    policy: str | None = None
    reason: str | None = None
    entry_pod: str | None = None
    predict_pod: str | None = None
    start: str | None = None
    stages_ms: dict[str, float] = field(default_factory=dict)
    variant: str | None = None
    """That served a request to an application."""
    expected_utility: float | None = None
    label: int | None = None
    """The right answer, where it is known."""
    prediction: int | None = None
    deadline_s: float | None = None
    """Of the application, where the trace has none."""
    utility: float | None = None
    """Achieved: 1 less the penalty of lateness for a right answer, else 0."""

    def read_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        for name, value in headers:
            if name == b"server-timing":
                self.stages_ms = reported_stages_ms(value.decode("latin-1"))
            elif name in _PILOTLIGHT_HEADERS:
                setattr(self, _PILOTLIGHT_HEADERS[name], value.decode("latin-1").strip())
            elif name == b"x-pilotlight-expected-utility":
                with suppress(ValueError):
                    self.expected_utility = float(value)

    def fail(self, error: str) -> None:
        self.error = error[:_MAX_ERROR_LENGTH]


def reported_stages_ms(server_timing: str) -> dict[str, float]:
    """Milliseconds by stage, of the stages of Pilotlight."""
    reported = parse_server_timing(server_timing)
    return {name: reported[name] for name in STAGES if name in reported}


def http_error(status: int, body: bytes) -> str:
    """The error of a response with a status other than 2xx."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = body.decode("utf-8", "replace").strip()
    return f"HTTP {status}: {_message(document)}"


def stream_error(tail: bytes) -> str | None:
    """Why a stream of server-sent events is incomplete; None for a complete one."""
    events = [line[5:].strip() for line in tail.split(b"\n") if line.startswith(b"data:")]
    for event in events:
        try:
            document = orjson.loads(event)
        except orjson.JSONDecodeError:
            continue
        if isinstance(document, dict) and "error" in document:
            return _message(document)
    is_complete = bool(events) and events[-1] == b"[DONE]"
    return None if is_complete else "the stream ended without [DONE]"


def streamed_tokens(tail: bytes) -> int | None:
    """Tokens generated, as the last events of a stream report its `usage`; None: they do not."""
    for line in reversed(tail.split(b"\n")):
        if not line.startswith(b"data:"):
            continue
        with suppress(orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
            return int(orjson.loads(line[5:])["usage"]["completion_tokens"])
    return None


def _message(document: Any) -> str:
    if isinstance(document, dict):
        inner = document.get("error", document.get("detail", document))
        return str(inner.get("message", inner)) if isinstance(inner, dict) else str(inner)
    return str(document)
