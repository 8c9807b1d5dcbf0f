"""Spans of sampled requests, by OpenTelemetry's SDK, which is imported where traces are on.

A request is one span with a child for each stage, from the times that responses carry anyway. The
trace context comes from the client (`traceparent`), who then decides on the sampling, and goes on
to the pod. https://www.w3.org/TR/trace-context/
"""

import random
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import DEFAULT_ON
from opentelemetry.trace import (
    Span,
    SpanKind,
    StatusCode,
    format_trace_id,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from common.http_headers import Headers
from gateway.http.headers import RequestHeaders
from gateway.telemetry.recent_requests import RecentRequest

_ERROR_STATUS: Final = 500


class Tracer:
    """Decides which requests are traced, and describes them when they end."""

    def __init__(self, ratio: float, endpoint: str = "", gateway: str = "gateway") -> None:
        """`ratio`: of the requests without a context; `endpoint`: the collector's URL."""
        self._random = random.Random()
        self._ratio = ratio
        self._open: dict[str, tuple[Span, RecentRequest | None]] = {}
        """Requests that run, with their outcomes once their responses have begun."""
        names = {"service.name": "pilotlight-gateway", "service.instance.id": gateway}
        self._provider = TracerProvider(
            sampler=DEFAULT_ON, resource=Resource(names), shutdown_on_exit=False
        )
        if endpoint:
            exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=5)
            self._provider.add_span_processor(
                BatchSpanProcessor(exporter, max_queue_size=4096, schedule_delay_millis=1000)
            )
        self._tracer = self._provider.get_tracer("pilotlight")
        self._propagator = TraceContextTextMapPropagator()

    def close(self) -> None:
        """Export what is left; blocks for some seconds at most."""
        self._provider.shutdown()

    def start(self, headers: Headers, read: RequestHeaders) -> None:
        """Begin the span of a request, if it is sampled; the pod gets the trace context.

        Most requests have none and are not sampled: those cost one random number.
        """
        has_context = b"traceparent:" in read.forwarded
        if has_context or self._random.random() < self._ratio:
            self._start(headers, read, has_context=has_context)

    def _start(self, headers: Headers, read: RequestHeaders, *, has_context: bool) -> None:
        """By the client's context; one that is not valid is dropped, and counts as none."""
        given = dict(headers).get(b"traceparent", b"").decode("latin-1")
        context = self._propagator.extract({"traceparent": given})
        if has_context:
            lines = read.forwarded.split(b"\r\n")
            kept = [line for line in lines if not line.startswith(b"traceparent:")]
            read.forwarded = b"\r\n".join(kept)
            is_valid = get_current_span(context).get_span_context().is_valid
            if not is_valid and self._random.random() >= self._ratio:
                return
        span = self._tracer.start_span("infer", context, SpanKind.SERVER)
        sent: dict[str, str] = {}
        self._propagator.inject(sent, set_span_in_context(span))
        read.forwarded += f"traceparent: {sent['traceparent']}\r\n".encode()
        if span.is_recording():
            self._open[read.request_id] = span, None

    def trace_id(self, request_id: str) -> str:
        """Of a traced request that has not ended; else empty."""
        if request_id not in self._open:
            return ""
        return format_trace_id(self._open[request_id][0].get_span_context().trace_id)

    def respond(self, outcome: RecentRequest) -> None:
        """The response of a request has begun."""
        if outcome.id in self._open:
            self._open[outcome.id] = self._open[outcome.id][0], outcome

    def end(self, request_id: str) -> None:
        """A request has ended, its response included."""
        if request_id not in self._open:
            return
        span, outcome = self._open.pop(request_id)
        if outcome is None:  # its client left before the response
            span.set_attribute("pilotlight.reason", "client-disconnect")
            span.end()
            return
        span.update_name(f"infer {outcome.model}")
        span.set_attributes(_attributes(outcome))
        if outcome.status >= _ERROR_STATUS:
            span.set_status(StatusCode.ERROR)
        span.end()
        begin_ns: int = span.start_time  # type: ignore[attr-defined]  # of the SDK's spans
        for name, took_ms in outcome.stages_ms():
            took_ns = int(took_ms * 1e6)
            if took_ns:
                stage = self._tracer.start_span(
                    name, set_span_in_context(span), start_time=begin_ns
                )
                begin_ns += took_ns
                stage.end(begin_ns)


def _attributes(outcome: RecentRequest) -> dict[str, str | int]:
    return {
        "http.request.method": "POST",
        "http.response.status_code": outcome.status,
        "gen_ai.request.model": outcome.model,
        "pilotlight.request_id": outcome.id,
        "pilotlight.policy": outcome.policy,
        "pilotlight.reason": outcome.reason,
        "pilotlight.start": outcome.start,
        "pilotlight.pod": outcome.pod,
    }
