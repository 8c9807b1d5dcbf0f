"""Traces at the real OpenTelemetry collector, which `make test-collector` builds and names.

Not part of the ordinary test runs: building it takes minutes, Go, and its modules.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests import servers
from tests.gateway.gateway_harness import running_harness
from tests.gateway.telemetry.test_tracing import PARENT, TRACE

_PROGRAM = os.environ.get("PILOTLIGHT_COLLECTOR", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _PROGRAM, reason="needs the program of make test-collector"),
]
_CONFIG = """yaml:
receivers: {otlp: {protocols: {http: {endpoint: "127.0.0.1:PORT"}}}}
exporters: {debug: {verbosity: detailed}}
service:
  pipelines: {traces: {receivers: [otlp], exporters: [debug]}}
  telemetry: {metrics: {level: none}}
"""


@contextmanager
def real_collector(folder: Path) -> Iterator[tuple[str, Path]]:
    """Its address, and the file that it prints spans into."""
    port, printed = servers.free_port(), folder / "collector.log"
    with printed.open("wb") as output:
        process = subprocess.Popen(
            [_PROGRAM, "--config", _CONFIG.replace("PORT", str(port))],
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def is_ready() -> bool:
        assert process.poll() is None, printed.read_text()
        return "Everything is ready" in printed.read_text()

    try:
        servers.wait_until(is_ready, what="collector")
        yield f"http://127.0.0.1:{port}", printed
    finally:
        servers.end_process(process)


def test_the_collector_takes_spans_with_their_parents_and_attributes(
    redis: servers.RedisServer, client: httpx.Client, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        url, printed = stack.enter_context(real_collector(tmp_path))
        settings = {"otlp_endpoint": url, "trace_ratio": 0}
        harness = stack.enter_context(
            running_harness(tmp_path, redis.url, "collector", client, **settings)
        )
        spec, _ = harness.start_warm_pod()
        harness.predict(spec, traceparent=f"00-{TRACE}-{PARENT}-01")
        servers.wait_until(lambda: "Span #" in printed.read_text(), what="spans printed")
        text = printed.read_text()
    assert re.search(rf"Trace ID\s+: {TRACE}", text), text
    assert re.search(rf"Parent ID\s+: {PARENT}", text), text
    assert re.search(rf"Name\s+: infer {spec.name}", text), text
    assert re.search(r"Kind\s+: Server", text), text
    assert "http.response.status_code: Int(200)" in text, text
    assert "service.name: Str(pilotlight-gateway)" in text, text
