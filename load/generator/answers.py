"""What one request came to: times, status, and what the answer's headers tell."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from load.stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_KEPT: Final = 4096
"""Bytes of an answer that are kept, from its end: for what an error says."""
_LONGEST_ERROR: Final = 300


@dataclass(slots=True)
class RequestResult:
    """What became of one request. Times in seconds since the run's start; None: it never was."""

    sent_s: float | None = None
    first_byte_s: float | None = None
    finished_s: float | None = None
    status: int = 0
    """0: no answer came."""
    error: str | None = None
    policy: str | None = None
    reason: str | None = None
    entry_pod: str | None = None
    predict_pod: str | None = None
    start: str | None = None
    stages_ms: dict[str, float] = field(default_factory=dict)

    def read_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Take over what design and gateway promise; a plain KServe tells none of it."""
        for name, value in headers:
            if name == b"server-timing":
                self.stages_ms = read_timing(value.decode("latin-1"))
            elif name.startswith(b"x-pilotlight-"):
                self._read_ours(name[13:], value.decode("latin-1").strip())

    def _read_ours(self, name: bytes, value: str) -> None:
        match name:
            case b"pod":
                self.entry_pod = value
            case b"predict-pod":
                self.predict_pod = value
            case b"policy":
                self.policy = value
            case b"reason":
                self.reason = value
            case b"start":
                self.start = value


def read_timing(value: str) -> dict[str, float]:
    """Our stages in milliseconds of a `server-timing` header; what is odd is left out."""
    found: dict[str, float] = {}
    for part in value.split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        for parameter in parameters:
            key, _, number = parameter.partition("=")
            if key == "dur" and name in STAGES:
                try:
                    milliseconds = float(number)
                except ValueError:
                    continue
                if math.isfinite(milliseconds):
                    found[name] = milliseconds
    return found


def error_of(status: int, body: bytes) -> str:
    """What an answer with an error status says."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = body.decode("utf-8", "replace").strip()
    return f"HTTP {status}: {_message(said)}"[:_LONGEST_ERROR]


def stream_error(tail: bytes) -> str | None:
    """Why a stream of server-sent events is not whole; None where it is."""
    events = [line[5:].strip() for line in tail.split(b"\n") if line.startswith(b"data:")]
    if events and events[-1] == b"[DONE]" and not any(_is_error(event) for event in events):
        return None
    for event in events:
        if _is_error(event):
            return _message(orjson.loads(event))[:_LONGEST_ERROR]
    return "the stream ended without [DONE]"


def _is_error(event: bytes) -> bool:
    try:
        document = orjson.loads(event)
    except orjson.JSONDecodeError:
        return False
    return isinstance(document, dict) and "error" in document


def _message(said: Any) -> str:
    if isinstance(said, dict):
        inner = said.get("error", said.get("detail", said))
        return str(inner.get("message", inner)) if isinstance(inner, dict) else str(inner)
    return str(said)
