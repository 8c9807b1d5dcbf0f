"""Sends spans to a collector by OTLP over HTTP, in its JSON encoding.

https://opentelemetry.io/docs/specs/otlp/ (version 1): `POST ENDPOINT/v1/traces`. Spans of a batch
that the collector does not take are dropped: requests never wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import httpx
import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.telemetry.tracing import Span, Tracer

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
MAX_BATCH: Final = 1024
_TIMEOUT_S: Final = 5.0
_KIND_INTERNAL: Final = 1
_KIND_SERVER: Final = 2
_STATUS_ERROR: Final = 2


class SpanExporter:
    def __init__(self, tracer: Tracer, endpoint: str, gateway: str) -> None:
        """`endpoint`: URL of the collector, without `/v1/traces`."""
        self._tracer = tracer
        self._url = f"{endpoint.rstrip('/')}/v1/traces"
        self._resource = {"service.name": "pilotlight-gateway", "service.instance.id": gateway}
        self._failures = 0

    async def run(self) -> None:
        """Export until cancelled; then what is left, once."""
        async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client:
            try:
                while True:
                    await asyncio.sleep(INTERVAL_S)
                    while self._tracer.spans:
                        await self._export(client)
            finally:
                if self._tracer.spans:
                    async with asyncio.timeout(_TIMEOUT_S):
                        await self._export(client)

    async def _export(self, client: httpx.AsyncClient) -> None:
        spans = self._tracer.spans
        batch = [spans.popleft() for _ in range(min(MAX_BATCH, len(spans)))]
        content = orjson.dumps(otlp_document(batch, self._resource))
        try:
            response = await client.post(
                self._url, content=content, headers={"content-type": "application/json"}
            )
            response.raise_for_status()
        except httpx.HTTPError as error:
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
