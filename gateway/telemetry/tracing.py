"""Spans of sampled requests, sent to a collector; none of it runs unless it is turned on.

A request is one span with a child for each stage, from the times that responses carry anyway. The
trace context comes from the client (`traceparent`), who then decides on the sampling, and goes on
to the pod. https://www.w3.org/TR/trace-context/ (level 1).
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import ssl
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from common.http_client import HttpClient, split_url
from common.http_connection import HttpError
from gateway.http.headers import Headers, RequestHeaders
from gateway.telemetry.recent_requests import RecentRequest

logger = logging.getLogger(__name__)

MAX_WAITING_SPANS: Final = 4096
"""Spans that wait to be exported; further ones are dropped and counted."""
_TRACEPARENT: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
_SAMPLED: Final = 1
_ERROR_STATUS: Final = 500
_NO_ATTRIBUTES: Final[Mapping[str, str | int]] = {}
INTERVAL_S: Final = 1.0
MAX_BATCH: Final = 1024
_TIMEOUT_S: Final = 5.0
_KIND_INTERNAL: Final = 1
_KIND_SERVER: Final = 2
_STATUS_ERROR: Final = 2


class Span(NamedTuple):
    """One span; times in nanoseconds since 1970."""

    trace_id: str
    span_id: str
    parent_id: str
    """Empty for the first span of a trace."""
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, str | int] = _NO_ATTRIBUTES
    is_server: bool = False
    is_error: bool = False


@dataclass(slots=True)
class Trace:
    """One sampled request while it runs."""

    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    outcome: RecentRequest | None = None


class Tracer:
    """Decides which requests are traced, and keeps their spans until they are exported."""

    def __init__(self, ratio: float) -> None:
        """`ratio`: part of the requests without a trace context that are traced."""
        self._ratio = ratio
        self._random = random.Random()
        self._open: dict[str, Trace] = {}
        self.spans: deque[Span] = deque(maxlen=MAX_WAITING_SPANS)
        self.dropped_total = 0

    def start(self, headers: Headers, read: RequestHeaders) -> None:
        """Begin the span of a request, if it is sampled; the pod gets the trace context.

        Most requests have none and are not sampled: those cost one random number.
        """
        has_context = b"traceparent:" in read.forwarded
        if not has_context and self._random.random() >= self._ratio:
            return
        self._start(headers, read, has_context=has_context)

    def _start(self, headers: Headers, read: RequestHeaders, *, has_context: bool) -> None:
        given = dict(headers).get(b"traceparent", b"")
        found = _TRACEPARENT.fullmatch(given.strip())
        trace_id, parent_id, is_sampled = f"{self._random.getrandbits(128):032x}", "", False
        if found is not None and found[1].decode() != _NO_TRACE and found[2].decode() != _NO_SPAN:
            trace_id, parent_id = found[1].decode(), found[2].decode()
            is_sampled = bool(int(found[3], 16) & _SAMPLED)
        else:
            is_sampled = not has_context or self._random.random() < self._ratio
        span_id = f"{self._random.getrandbits(64) or 1:016x}"
        context = f"traceparent: 00-{trace_id}-{span_id}-{int(is_sampled):02x}\r\n".encode()
        if has_context:
            lines = read.forwarded.split(b"\r\n")
            kept = [line for line in lines if not line.startswith(b"traceparent:")]
            read.forwarded = b"\r\n".join(kept)
        read.forwarded += context
        if is_sampled:
            self._open[read.request_id] = Trace(trace_id, span_id, parent_id, time.time_ns())

    def trace_id(self, request_id: str) -> str:
        """Of a traced request that has not ended; else empty."""
        trace = self._open.get(request_id)
        return "" if trace is None else trace.trace_id

    def respond(self, outcome: RecentRequest) -> None:
        """The response of a request has begun."""
        trace = self._open.get(outcome.id)
        if trace is not None:
            trace.outcome = outcome

    def end(self, request_id: str) -> None:
        """A request has ended, its response included."""
        trace = self._open.pop(request_id, None)
        if trace is None:
            return
        made = _spans(trace, time.time_ns())
        self.dropped_total += max(0, len(self.spans) + len(made) - MAX_WAITING_SPANS)
        self.spans += made


def _spans(trace: Trace, end_ns: int) -> list[Span]:
    outcome = trace.outcome
    if outcome is None:  # its client left before the response
        return [
            Span(
                trace.trace_id, trace.span_id, trace.parent_id, "infer", trace.start_ns, end_ns,
                {"pilotlight.reason": "client-disconnect"}, is_server=True,
            )
        ]  # fmt: skip
    attributes: dict[str, str | int] = {
        "http.request.method": "POST",
        "http.response.status_code": outcome.status,
        "gen_ai.request.model": outcome.model,
        "pilotlight.request_id": outcome.id,
        "pilotlight.policy": outcome.policy,
        "pilotlight.reason": outcome.reason,
        "pilotlight.start": outcome.start,
        "pilotlight.pod": outcome.pod,
    }
    spans = [
        Span(
            trace.trace_id, trace.span_id, trace.parent_id, f"infer {outcome.model}",
            trace.start_ns, end_ns, attributes, is_server=True,
            is_error=outcome.status >= _ERROR_STATUS,
        )
    ]  # fmt: skip
    begin_ns = trace.start_ns
    for name, took_ms in outcome.stages_ms():
        took_ns = int(took_ms * 1e6)
        if took_ns:
            span_id = f"{random.getrandbits(64) or 1:016x}"
            spans.append(
                Span(trace.trace_id, span_id, trace.span_id, name, begin_ns, begin_ns + took_ns)
            )
            begin_ns += took_ns
    return spans


class SpanExporter:
    """Sends spans by OTLP over HTTP, in its JSON encoding: `POST ENDPOINT/v1/traces`.

    https://opentelemetry.io/docs/specs/otlp/ (version 1). Spans of a batch that the collector does
    not take are dropped: requests never wait for it.
    """

    def __init__(self, tracer: Tracer, endpoint: str, gateway: str) -> None:
        """`endpoint`: URL of the collector, without `/v1/traces`."""
        self._tracer = tracer
        self._url = f"{endpoint.rstrip('/')}/v1/traces"
        self._client = HttpClient(
            tls=ssl.create_default_context() if endpoint.startswith("https:") else None
        )
        self._resource = {"service.name": "pilotlight-gateway", "service.instance.id": gateway}
        self._failures = 0

    async def run(self) -> None:
        """Export until cancelled; then what is left, once."""
        try:
            while True:
                await asyncio.sleep(INTERVAL_S)
                while self._tracer.spans:
                    await self._export()
        finally:
            if self._tracer.spans:
                await self._export()
            self._client.close()

    async def _export(self) -> None:
        spans = self._tracer.spans
        batch = [spans.popleft() for _ in range(min(MAX_BATCH, len(spans)))]
        content = orjson.dumps(otlp_document(batch, self._resource))
        address, path = split_url(self._url)
        headers = {"content-type": "application/json"}
        try:
            response = await self._client.request(
                "POST", address, path, headers, content, timeout_s=_TIMEOUT_S
            )
            if not response.is_success:
                raise HttpError(f"status {response.status}: {response.text[:200]}")
        except HttpError as error:
            self._failures += 1
            if self._failures == 1:  # one line per outage
                logger.warning("spans were not exported", extra={"url": self._url, "error": error})
            return
        self._failures = 0


def otlp_document(spans: Sequence[Span], resource: Mapping[str, str]) -> dict[str, Any]:
    """An `ExportTraceServiceRequest`; ids are hexadecimal, 64-bit numbers are strings."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [
                    {"scope": {"name": "pilotlight"}, "spans": [_span(each) for each in spans]}
                ],
            }
        ]
    }


def _span(span: Span) -> dict[str, Any]:
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id,
        "name": span.name,
        "kind": _KIND_SERVER if span.is_server else _KIND_INTERNAL,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
        "status": {"code": _STATUS_ERROR} if span.is_error else {},
    }


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {
            "key": key,
            "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value},
        }
        for key, value in values.items()
    ]
