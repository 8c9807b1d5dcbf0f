"""What pods of one machine share, measured once per home for the simulator's cluster files."""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from common.child_process import python_environment

_WEIGHTS_MB: Final = 80
"""More than the cores' caches hold, as most models' weights."""
_MEASURE_S: Final = 0.4
_ROUNDS: Final = 3
_MAX_WORKERS: Final = 8
"""Each needs twice the weights' memory. More cores share their caches about as eight do."""
_FILE_MB: Final = 64
_WORK: Final = f"""
import sys, time
import numpy as np
weights = [np.ones((512, 2048), np.float32) for _ in range({_WEIGHTS_MB} // 4)]
rows = np.ones((8, 512), np.float32)
for each in weights: rows @ each
print(flush=True)
while sys.stdin.readline().strip():
    begun, done = time.perf_counter(), 0
    while time.perf_counter() < begun + {_MEASURE_S}:
        for each in weights: rows @ each
        done += 1
    print(done / (time.perf_counter() - begun), flush=True)
"""
"""Products with weights that come from memory, as in inferences of few rows."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Of a node in a cluster file (`docs/simulator.md`)."""

    cores: int
    all_cores_speed: float
    """Of a core while all are busy, against one that is busy alone."""
    disk_bytes_per_s: float

    @classmethod
    def read(cls, path: Path) -> "Machine | None":
        """As measured before on a machine with as many cores; None if it was not."""
        with suppress(OSError, ValueError, TypeError):
            found = cls(**json.loads(path.read_text()))
            return found if found.cores == _cores() else None
        return None

    @classmethod
    def measure(cls, path: Path) -> "Machine":
        """Measured once, which takes three seconds, and kept in the file; raises OSError."""
        if (known := cls.read(path)) is not None:
            return known
        cores = _cores()
        found = cls(cores, _all_cores_speed(cores), _disk_bytes_per_s(path.parent))
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(found)) + "\n")
        return found


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _all_cores_speed(cores: int) -> float:
    """Medians of rounds, since other work may interfere with some."""
    if cores == 1:
        return 1.0
    workers = [_Worker() for _ in range(min(cores, _MAX_WORKERS))]
    try:
        alone, together = [], []
        for _ in range(_ROUNDS):
            workers[0].begin()
            alone.append(workers[0].rate())
            for each in workers:
                each.begin()
            together += [each.rate() for each in workers]
    finally:
        for each in workers:
            each.end()
    return round(min(1.0, median(together) / median(alone)), 3)


class _Worker:
    def __init__(self) -> None:
        one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=python_environment({**os.environ, **one_thread}),
            text=True,
        )
        self._read()

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def rate(self) -> float:
        """Rounds per second."""
        return float(self._read())

    def _read(self) -> str:
        """Raises ChildProcessError if it has ended, as without memory."""
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise ChildProcessError("a process that measured the cores has ended")
        return line

    def end(self) -> None:
        self._process.communicate()


def _disk_bytes_per_s(folder: Path) -> float:
    """Of reading a file that the page cache does not hold."""
    block = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(_FILE_MB):
            file.write(block)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        begun_s = time.perf_counter()
        while file.read(1 << 20):
            pass
        return round(_FILE_MB * len(block) / (time.perf_counter() - begun_s))
