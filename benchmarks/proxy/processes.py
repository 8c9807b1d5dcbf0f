"""Processes of a benchmark: pinned to cores, with their CPU time, ended with their children."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.machine import REPOSITORY

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_ROLES: Final = ("redis-server", "rclone", "gateway", "autoscaler", "workflows")
"""First words of processes' command lines, after Python's; all others are pods."""
_PR_SET_PDEATHSIG: Final = 1
_END_S: Final = 15.0


class ProcessStartFailed(Exception):
    """A process ended or was not ready in time; the message has the end of its output."""


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """A process; `started` distinguishes it from a later one with the same pid."""

    pid: int
    parent: int
    started: int
    cpu_s: float
    priority: int
    """The kernel's: a lower one runs first."""


@dataclass(frozen=True, slots=True)
class BenchmarkProcess:
    """A started process and its descendants."""

    process: subprocess.Popen[bytes]
    log: Path

    def cpu_s(self) -> float:
        """CPU time of the process and its living descendants so far, in seconds."""
        return sum(entry.cpu_s for entry in self._family())

    def resident_bytes(self) -> int:
        """Resident memory of the process and its living descendants; shared pages count in each."""
        pages = 0
        for entry in self._family():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                pages += int(Path(f"/proc/{entry.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def pids(self) -> list[int]:
        """The process and its descendants."""
        return [entry.pid for entry in self._family()]

    def _family(self) -> list[ProcessEntry]:
        return family_of(self.process.pid)

    def end(self) -> None:
        """End the process, then its remaining descendants."""
        family = self._family()
        self.process.terminate()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        alive = {(entry.pid, entry.started) for entry in process_table()}
        for entry in family:
            if (entry.pid, entry.started) in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(entry.pid, signal.SIGKILL)

    def wait_until(self, is_ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Return when ready. Raises StartFailed."""
        until_s = time.monotonic() + timeout_s
        while not is_ready():
            status = self.process.poll()
            if status is not None or time.monotonic() > until_s:
                problem = "not ready in time" if status is None else f"ended with status {status}"
                tail = self.log.read_text(errors="replace")[-2000:]
                raise ProcessStartFailed(f"{problem}: {tail}")
            time.sleep(0.05)


def family_of(pid: int) -> list[ProcessEntry]:
    """A process and its living descendants."""
    table = list(process_table())
    found = {pid}
    while grown := {entry.pid for entry in table if entry.parent in found} - found:
        found |= grown
    return [entry for entry in table if entry.pid in found]


def start(
    command: Sequence[str],
    *,
    cores: set[int],
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> BenchmarkProcess:
    """Start a process on these cores, with output to `log`; it ends with this process."""
    libc = ctypes.CDLL(None)

    def in_child() -> None:
        os.sched_setaffinity(0, cores)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command),
            cwd=REPOSITORY,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=in_child,  # no threads here
        )
    return BenchmarkProcess(process, log)


def process_table() -> Iterator[ProcessEntry]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        yield ProcessEntry(
            int(path.parent.name), int(fields[1]), int(fields[19]), cpu_s, int(fields[15])
        )


def machine_busy_s() -> float:
    """CPU seconds of all processes of the machine so far, summed over cores."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _, _, irq, softirq = fields[:7]
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def cpu_by_role() -> dict[str, float]:
    """CPU time so far by role: pods, gateway, client (this process), …, the machine.

    `rivals` are other processes that do not yield to these, by their priority.
    """
    table = list(process_table())
    ours = {entry.pid for entry in family_of(os.getpid())}
    own = next(entry.priority for entry in table if entry.pid == os.getpid())
    found = {"machine": machine_busy_s(), "rivals": 0.0}
    for entry in table:
        if entry.pid in ours:
            role = _role_of(entry.pid)
            found[role] = found.get(role, 0.0) + entry.cpu_s
        elif entry.priority <= own:
            found["rivals"] += entry.cpu_s
    return found


def _role_of(pid: int) -> str:
    if pid == os.getpid():
        return "client"
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:4]
    except (FileNotFoundError, ProcessLookupError):
        return "ended"
    return next((each for each in _ROLES for word in words if word.endswith(each)), "pods")


def wait_quiet(*, busy_below: float, timeout_s: float) -> float:
    """Wait until the machine is almost idle; returns the number of busy cores."""
    until_s = time.monotonic() + timeout_s
    while True:
        before_s, began_s = machine_busy_s(), time.monotonic()
        time.sleep(0.2)
        busy = (machine_busy_s() - before_s) / (time.monotonic() - began_s)
        if busy <= busy_below or time.monotonic() > until_s:
            return busy


def post(url: str, body: bytes) -> tuple[int, bytes]:
    """Status and body of one POST; status 0 if there is no response."""
    request = urllib.request.Request(
        url, data=body, headers={"content-type": "application/json"}, method="POST"
    )
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""
