"""512 busy keep-alive clients at one gateway: their latencies, and a new client's first response.

Event loops that accept one connection per turn let hundreds of new clients wait for seconds beside
busy ones, so a client without any response counts with the time that it waited.
"""

import os
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchmarks.marks import Mark
from benchmarks.proxy.generator import BurstResult, load
from benchmarks.proxy.processes import machine_busy_s
from benchmarks.proxy.serving_systems import (
    TINY,
    CoreLayout,
    ReadySystem,
    RoundSetup,
    running,
    serving_systems,
)
from benchmarks.quantiles import quantile, spread

CLIENTS: Final = 512
_NEW_CLIENT_INTERVAL_S: Final = 0.1
_SETTLE_S: Final = 0.5
"""From the burst's begin to its first new client: its own connections are open by then."""
_TIMEOUT_S: Final = 10.0
MAX_TAIL: Final = 3.0
"""Times p50 that p99 may be."""
MAX_FIRST_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Burst:
    """One burst of load, with fresh connections."""

    load: BurstResult
    first_s: list[float]
    """Time from connecting to the response, of each client that came meanwhile."""
    busy_cores: float
    """Cores in use by all processes of the machine meanwhile."""


def measure(*, repeats: int, seconds: float) -> list[Burst]:
    """Bursts at one gateway; it has one core, all else the other."""
    system = next(one for one in serving_systems() if one.name == "Pilotlight gateway")
    first, second = sorted(os.sched_getaffinity(0))[:2]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        setup = RoundSetup(CoreLayout.ALONE, {first}, {second}, second, Path(folder))
        with running(system, setup) as ready:
            load(ready.url, TINY, clients=16, seconds=1.0, core=second)
            return [_burst(ready, seconds, second) for _ in range(repeats)]


def _burst(ready: ReadySystem, seconds: float, core: int) -> Burst:
    results: list[BurstResult] = []

    def run() -> None:
        results.append(
            load(ready.url, TINY, clients=CLIENTS, seconds=seconds, core=core, own_client=True)
        )

    busy_s, began_s = machine_busy_s(), time.monotonic()
    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(_SETTLE_S + _NEW_CLIENT_INTERVAL_S)
    first_s = []
    while time.monotonic() < began_s + seconds:
        first_s.append(_first_response_s(ready.url))
        time.sleep(_NEW_CLIENT_INTERVAL_S)
    thread.join()
    busy_cores = (machine_busy_s() - busy_s) / (time.monotonic() - began_s)
    return Burst(results[0], first_s, busy_cores)


def _first_response_s(url: str) -> float:
    """From connecting to the last byte of the response, which says `connection: close`."""
    parts = urlsplit(url)
    request = (
        f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(TINY)}\r\n\r\n"
    )
    began_s = time.perf_counter()
    try:
        with socket.create_connection(
            (parts.hostname or "", parts.port or 80), timeout=_TIMEOUT_S
        ) as connection:
            connection.sendall(request.encode() + TINY)
            while connection.recv(65536):
                pass
    except OSError:
        return _TIMEOUT_S
    return time.perf_counter() - began_s


def summary(bursts: Sequence[Burst]) -> str:
    """A Markdown table, one line per burst."""
    lines = [
        "| burst | requests/s | p50 ms | p99 ms | p99 / p50 | longest ms | without a response"
        " | new clients | first response, median and longest ms | busy cores |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for number, burst in enumerate(bursts):
        seen, first_ms = burst.load, [1000 * each for each in burst.first_s]
        lines.append(
            f"| {number} | {seen.requests_per_s:,.0f} | {seen.p50_ms:.0f} | {seen.p99_ms:.0f}"
            f" | {_tail(burst):.2f} | {seen.longest_ms:.0f} | {seen.unserved} | {len(first_ms)}"
            f" | {quantile(first_ms, 0.5):.0f}, {max(first_ms):.0f} | {burst.busy_cores:.2f} |"
        )
    return "\n".join(lines)


def _tail(burst: Burst) -> float:
    return burst.load.p99_ms / burst.load.p50_ms


def marks(bursts: Sequence[Burst]) -> list[Mark]:
    """The two targets, each by its worst burst."""
    tails = spread([_tail(burst) for burst in bursts])
    first_ms = [1000 * each for burst in bursts for each in burst.first_s]
    unserved = sum(burst.load.unserved for burst in bursts)
    return [
        Mark(
            f"p99 at most {MAX_TAIL:g} times p50 with {CLIENTS} clients, none without a response",
            f"{tails.median:.2f} ({tails.lowest:.2f} to {tails.highest:.2f}), {unserved} without",
            tails.highest <= MAX_TAIL and unserved == 0,
        ),
        Mark(
            f"a new client's first response within {1000 * MAX_FIRST_S:.0f} ms",
            f"p50 {quantile(first_ms, 0.5):.0f}, p99 {quantile(first_ms, 0.99):.0f}, longest"
            f" {max(first_ms):.0f} ms of {len(first_ms)}",
            max(first_ms) <= 1000 * MAX_FIRST_S,
        ),
    ]
