"""Closed-loop load on one URL: `wrk` if it is installed, else `benchmarks.proxy.client`."""

import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from benchmarks.machine import REPOSITORY

_LUA: Final = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
local file = io.open("{body}", "rb")
wrk.body = file:read("*a")
file:close()
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\\nRESULT {{"requests":%d,"seconds":%f,"errors":%d,"p50_ms":%f,' ..
    '"p95_ms":%f,"p99_ms":%f,"longest_ms":%f}}\\n', summary.requests, summary.duration / 1e6,
    e.connect + e.read + e.write + e.status + e.timeout, latency:percentile(50) / 1e3,
    latency:percentile(95) / 1e3, latency:percentile(99) / 1e3, latency.max / 1e3))
end
"""


@dataclass(frozen=True, slots=True)
class BurstResult:
    """Responses to one burst of load."""

    requests: int
    seconds: float
    errors: int
    """Responses other than 2xx and 3xx, broken connections, timeouts."""
    p50_ms: float
    p95_ms: float
    p99_ms: float
    longest_ms: float
    generator_cpu_s: float
    unserved: int = 0
    """Connections without any response, by our own client; their waits are among the latencies."""

    @property
    def requests_per_s(self) -> float:
        """Requests without error per second."""
        return max(0, self.requests - self.errors) / self.seconds


def generator_name() -> str:
    """Name of the load generator on this machine."""
    return "wrk" if shutil.which("wrk") else "own client (uvloop, httptools)"


def load(
    url: str, body: bytes, *, clients: int, seconds: float, core: int, own_client: bool = False
) -> BurstResult:
    """Keep `clients` connections busy for a while, from one core; `own_client`: without wrk."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        body_file = Path(folder) / "body.json"
        body_file.write_bytes(body)
        if (wrk := shutil.which("wrk")) and not own_client:
            script = Path(folder) / "post.lua"
            script.write_text(_LUA.format(body=body_file))
            command = [
                wrk,
                "-t1",
                f"-c{clients}",
                f"-d{max(1, round(seconds))}s",
                "--timeout",
                "10s",
                "-s",
                str(script),
                url,
            ]
        else:
            command = [
                sys.executable,
                "-m",
                "benchmarks.proxy.client",
                url,
                str(body_file),
                str(clients),
                str(seconds),
            ]
        return _run(["taskset", "-c", str(core), *command], timeout_s=seconds + 30)


def _run(command: Sequence[str], *, timeout_s: float) -> BurstResult:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, check=True, timeout=timeout_s
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    line = next(line for line in done.stdout.splitlines() if line.startswith(b"RESULT "))
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return BurstResult(**orjson.loads(line.removeprefix(b"RESULT ")), generator_cpu_s=cpu_s)
