"""Spans of requests: sampling, the trace context, and their export to a real HTTP server."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.http.headers import read_headers
from gateway.telemetry.tracing import Tracer
from tests import servers
from tests.gateway.gateway_harness import running_harness
from tests.http_server import Handler, http_server

pytestmark = pytest.mark.slow

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


def traced(tracer: Tracer, given: str | None) -> tuple[str, bytes]:
    """The trace id of a request with this context, empty if it is not traced; what pods get."""
    headers = [(b"accept", b"*/*")]
    if given is not None:
        headers.append((b"traceparent", given.encode()))
    read = read_headers(headers).with_id()
    tracer.start(headers, read)
    return tracer.trace_id(read.request_id), read.forwarded


def test_a_client_decides_on_the_sampling_of_its_traces() -> None:
    sampled, forwarded = traced(Tracer(0.0), f"00-{TRACE}-{PARENT}-01")
    assert sampled == TRACE
    assert forwarded.count(b"traceparent: ") == 1
    assert f"00-{TRACE}-".encode() in forwarded
    assert PARENT.encode() not in forwarded
    left_out, forwarded = traced(Tracer(1.0), f"00-{TRACE}-{PARENT}-00")
    assert left_out == ""
    assert f"00-{TRACE}-".encode() in forwarded
    assert forwarded.rstrip().endswith(b"-00")


def test_headers_whose_names_end_like_the_trace_context_stay_whole() -> None:
    context = f"00-{TRACE}-{PARENT}-01".encode()
    headers = [(b"x-traceparent", context), (b"accept", b"*/*"), (b"traceparent", context)]
    read = read_headers(headers)
    Tracer(0.0).start(headers, read)
    lines = read.forwarded.split(b"\r\n")
    assert lines[:2] == [b"x-traceparent: " + context, b"accept: */*"]
    assert sum(line.startswith(b"traceparent:") for line in lines) == 1


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "nonsense",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
    ],
)
def test_without_a_valid_context_a_new_trace_begins(given: str | None) -> None:
    trace_id, forwarded = traced(Tracer(1.0), given)
    assert len(trace_id) == 32
    assert trace_id != TRACE
    assert forwarded.count(b"traceparent: ") == 1
    untraced, forwarded = traced(Tracer(0.0), given)
    assert untraced == ""
    assert b"traceparent" not in forwarded


def test_requests_that_are_not_sampled_pass_unchanged() -> None:
    assert b"traceparent" not in traced(Tracer(0.0), None)[1]


def test_a_part_of_the_requests_is_sampled() -> None:
    tracer = Tracer(0.1)
    sampled = sum(traced(tracer, None)[0] != "" for _ in range(5_000))
    assert 350 < sampled < 650  # seven standard deviations


class Collector:
    """Keeps the spans that it gets."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.url = ""

    def add(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans


@contextmanager
def collector() -> Iterator[Collector]:
    kept = Collector()

    class Traces(Handler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            kept.add(ExportTraceServiceRequest.FromString(self.body()))
            self.answer(200, b"")

    with http_server(Traces) as address:
        kept.url = f"http://{address}"
        yield kept


def test_a_collector_gets_a_span_per_stage(
    redis: servers.RedisServer, client: httpx.Client, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        kept = stack.enter_context(collector())
        harness = stack.enter_context(
            running_harness(
                tmp_path,
                redis.url,
                "traces",
                client,
                otlp_endpoint=kept.url,
                trace_ratio=0,
                access_log="true",
                log_format="json",
            )
        )
        spec, _ = harness.start_warm_pod()
        context = f"00-{TRACE}-{PARENT}-01"
        sent = harness.predict(spec, x_test="response=headers", traceparent=context)
        harness.predict(spec)
        servers.wait_until(lambda: kept.spans, what="spans exported")
        root, *stages = kept.spans
        assert {each.trace_id.hex() for each in kept.spans} == {TRACE}
        assert (root.parent_span_id.hex(), root.name) == (PARENT, f"infer {spec.name}")
        assert sent.json()["headers"]["traceparent"] == f"00-{TRACE}-{root.span_id.hex()}-01"
        assert {each.parent_span_id for each in stages} == {root.span_id}
        assert {"infer", "preprocess", "postprocess"} <= {each.name for each in stages}
        assert root.start_time_unix_nano <= max(each.end_time_unix_nano for each in stages)
        logged = [json.loads(line) for line in harness.gateway.log.splitlines()]
        requests = [each for each in logged if each["message"] == "request"]
        assert [each["trace_id"] for each in requests] == [TRACE, ""]
        assert requests[0]["model"] == str(spec.name)
