"""`python -m benchmarks.picker`: the endpoint picker's CPU per request, decisions, and idle CPU.

One HTTP/2 connection, as Envoy has; request headers only, and the response's. 100 pods, all warm.
"""

import argparse
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.machine import machine_facts, save
from benchmarks.marks import Mark, mark_lines
from benchmarks.quantiles import quantile, spread
from common.grpc.frames import DATA, END_HEADERS, END_STREAM, HEADERS, WINDOW_UPDATE, frame, literal
from gateway.picker.process import PROCESS, messages
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, running_harness
from tests.gateway.grpc.test_attacks import PREFACE, Frames

PODS: Final = 100
IN_FLIGHT: Final = 16
MAX_CPU_MS, MAX_DECISION_MS, MAX_IDLE_CORES = 0.45, 0.4, 0.05
_BLOCK: Final = b"\x83\x86" + b"".join(
    literal(name, value)
    for name, value in (
        (b":path", PROCESS), (b":authority", b"picker"), (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Samples:
    cpu_ms: list[float]
    """Per request, of each burst of `IN_FLIGHT` requests at once."""
    decision_ms: list[float]
    """From sending one request's headers to the pick, nothing else in flight."""
    idle_cores: float


class Proxy:
    """In Envoy's place."""

    def __init__(self, port: int, path: str) -> None:
        window = frame(WINDOW_UPDATE, 0, 0, (2**31 - 70_000).to_bytes(4, "big"))
        self._frames = Frames(port, PREFACE + window)
        self._number = -1
        pairs = {":path": path, ":method": "POST", ":authority": "a", "content-length": "2"}
        self._request = _message("request_headers", pairs, is_over=False)
        self._response = _message("response_headers", {":status": "200"}, is_over=True)

    def pick(self, count: int) -> None:
        """Have this many requests picked at once, then answered by their pods."""
        numbers = [self._number + 2 * (at + 1) for at in range(count)]
        self._number = numbers[-1]
        self._frames.send(
            b"".join(
                frame(HEADERS, END_HEADERS, each, _BLOCK) + frame(DATA, 0, each, self._request)
                for each in numbers
            )
        )
        self._read(numbers)

    def respond(self, count: int) -> None:
        numbers = [self._number - 2 * at for at in range(count)]
        self._frames.send(b"".join(frame(DATA, END_STREAM, n, self._response) for n in numbers))
        self._read(numbers)

    def _read(self, numbers: list[int]) -> None:
        for _ in numbers:
            _, _, content = self._frames.read(DATA)
            answer = messages.ProcessingResponse.FromString(content[5:])
            assert not answer.HasField("immediate_response"), answer


def _message(kind: str, headers: dict[str, str], *, is_over: bool) -> bytes:
    message: Any = messages.ProcessingRequest()
    head = getattr(message, kind)
    head.end_of_stream = is_over
    for name, value in headers.items():
        head.headers.headers.add(key=name, raw_value=value.encode())
    content: bytes = message.SerializeToString()
    return b"\0" + len(content).to_bytes(4, "big") + content


def measure(harness: GatewayHarness, port: int, *, bursts: int, requests: int) -> Samples:
    spec = harness.declare()
    harness.start_pods(*(f"pod-{at}" for at in range(PODS)), warm=spec, slots=8)
    proxy = Proxy(port, f"/v1/models/{spec.name.name}:predict")
    pid = harness.gateway.process.pid

    def burst() -> float:
        before_s = servers.cpu_s(pid)
        for _ in range(requests // IN_FLIGHT):
            proxy.pick(IN_FLIGHT)
            proxy.respond(IN_FLIGHT)
        return 1000 * (servers.cpu_s(pid) - before_s) / (requests // IN_FLIGHT * IN_FLIGHT)

    burst()  # warms up
    cpu_ms, decision_ms = [burst() for _ in range(bursts)], []
    for _ in range(requests):
        began_s = time.perf_counter()
        proxy.pick(1)
        decision_ms.append(1000 * (time.perf_counter() - began_s))
        proxy.respond(1)
    before_s, began_s = servers.cpu_s(pid), time.monotonic()
    time.sleep(5.0 * bursts)
    idle_cores = (servers.cpu_s(pid) - before_s) / (time.monotonic() - began_s)
    return Samples(cpu_ms, decision_ms, idle_cores)


def marks(samples: Samples) -> list[Mark]:
    cpu, p95 = spread(samples.cpu_ms), quantile(samples.decision_ms, 0.95)
    return [
        Mark(
            f"at most {MAX_CPU_MS} ms of CPU per request, headers only",
            f"{cpu.median:.2f} ({cpu.lowest:.2f} to {cpu.highest:.2f})",
            cpu.median <= MAX_CPU_MS,
        ),
        Mark(
            f"decisions within {MAX_DECISION_MS} ms (p95) at {PODS} pods, gRPC included",
            f"p50 {quantile(samples.decision_ms, 0.5):.2f}, p95 {p95:.2f} ms",
            p95 <= MAX_DECISION_MS,
        ),
        Mark(
            f"at most {MAX_IDLE_CORES} cores when idle at {PODS} pods",
            f"{samples.idle_cores:.3f}",
            samples.idle_cores <= MAX_IDLE_CORES,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picker", description=__doc__)
    parser.add_argument("--bursts", type=int, default=5, help="to measure")
    parser.add_argument("--requests", type=int, default=4000, help="of each burst")
    given, machine, port = parser.parse_args(), machine_facts(), servers.free_port()
    settings = {"picker_port": port, "picker_tls": "off"}
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        httpx.Client(trust_env=False, timeout=60) as client,
        servers.redis_server(Path(name)) as redis,
        running_harness(Path(name), redis.url, "bench", client, **settings) as harness,
    ):
        samples = measure(harness, port, bursts=given.bursts, requests=given.requests)
    print(f"{machine.line()}\n\n{mark_lines(marks(samples))}")
    print(f"\nsamples: {save('picker', machine, vars(given), asdict(samples))}")


if __name__ == "__main__":
    main()
