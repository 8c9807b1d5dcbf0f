"""What open consoles, and traces, take from a gateway: throughput and CPU time with and without.

`python -m benchmarks.console.gateway_cost`: 64 clients at a gateway on one core; then ten browsers'
event streams beside them; then a gateway that traces one request in ten. Pairs of bursts alternate,
so that other work on the machine disturbs both sides alike; CPU time per request is compared too,
since it depends less on that work.
"""

import argparse
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from benchmarks.machine import machine_facts, save
from benchmarks.proxy.generator import load
from benchmarks.proxy.serving_systems import (
    TINY,
    CoreLayout,
    ReadySystem,
    RoundSetup,
    running,
    serving_systems,
)
from benchmarks.quantiles import spread

CLIENTS: Final = 64
BROWSERS: Final = 10
_OTLP: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"


@dataclass(frozen=True, slots=True)
class Pair:
    """A burst without and one with what is measured."""

    what: str
    rps: tuple[float, float]
    cpu_us: tuple[float, float]
    """CPU time of the gateway per request."""

    @property
    def throughput(self) -> float:
        """Change of the throughput, in percent."""
        return 100 * (self.rps[1] / self.rps[0] - 1)

    @property
    def cpu(self) -> float:
        """Change of the CPU time per request, in percent."""
        return 100 * (self.cpu_us[1] / self.cpu_us[0] - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    machine = machine_facts()
    print(f"{machine.line()}\n", flush=True)
    pairs = measure(arguments.repeats, arguments.seconds)
    print(summary(pairs))
    save("console-cost", machine, vars(arguments), [asdict(each) for each in pairs])


def measure(repeats: int, seconds: float) -> list[Pair]:
    with ExitStack() as stack:
        plain = stack.enter_context(_gateway({}))
        url = stack.enter_context(_collector())
        traced = stack.enter_context(_gateway({_OTLP: url}))
        for system in (plain, traced):
            _burst(system, 1.0)
        pairs = []
        for _ in range(repeats):
            without = _burst(plain, seconds)
            with _browsers(plain):
                pairs.append(_pair("ten browsers", without, _burst(plain, seconds)))
            without = _burst(plain, seconds)
            pairs.append(_pair("traces of one in ten", without, _burst(traced, seconds)))
        return pairs


@contextmanager
def _gateway(environment: Mapping[str, str]) -> Iterator[ReadySystem]:
    """Alone on the first core; its settings come from the environment."""
    system = next(one for one in serving_systems() if one.name == "Pilotlight gateway")
    first, second = sorted(os.sched_getaffinity(0))[:2]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        setup = RoundSetup(CoreLayout.ALONE, {first}, {second}, second, Path(folder))
        os.environ.update(environment)
        with running(system, setup) as ready:
            for name in environment:
                del os.environ[name]
            yield ready


def _burst(system: ReadySystem, seconds: float) -> tuple[float, float]:
    """Requests per second, and the gateway's CPU time per request in microseconds."""
    core = sorted(os.sched_getaffinity(0))[1]
    before_s = system.process.cpu_s()
    result = load(system.url, TINY, clients=CLIENTS, seconds=seconds, core=core, own_client=True)
    spent_s = system.process.cpu_s() - before_s
    return result.requests_per_s, 1e6 * spent_s / (result.requests_per_s * seconds)


def _pair(what: str, without: tuple[float, float], with_: tuple[float, float]) -> Pair:
    return Pair(what, (without[0], with_[0]), (without[1], with_[1]))


@contextmanager
def _browsers(system: ReadySystem) -> Iterator[None]:
    """Ten readers of the overview's events."""
    parts = urlsplit(system.url)
    events = f"{parts.scheme}://{parts.netloc}/console/events"
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=60))
        ended = threading.Event()
        for _ in range(BROWSERS):
            response = stack.enter_context(client.stream("GET", events))
            lines = response.iter_lines()
            next(lines)
            thread = threading.Thread(target=_read, args=(lines, ended))
            thread.start()
            stack.callback(thread.join)
        stack.callback(ended.set)
        yield


def _read(lines: Iterator[str], ended: threading.Event) -> None:
    for _ in lines:
        if ended.is_set():
            return


@contextmanager
def _collector() -> Iterator[str]:
    """Takes spans and drops them."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def summary(pairs: list[Pair]) -> str:
    """A Markdown table: the median pair and the spread of each."""
    lines = [
        "| beside 64 clients | throughput, % | CPU time per request, % | requests/s without |",
        "|---|---|---|---|",
    ]
    for what in dict.fromkeys(each.what for each in pairs):
        mine = [each for each in pairs if each.what == what]
        rps = spread([each.throughput for each in mine])
        cpu = spread([each.cpu for each in mine])
        base = spread([each.rps[0] for each in mine])
        lines.append(
            f"| {what} | {rps.median:+.1f} ({rps.lowest:+.1f} to {rps.highest:+.1f})"
            f" | {cpu.median:+.1f} ({cpu.lowest:+.1f} to {cpu.highest:+.1f}) | {base.median:,.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
