"""What bounds copies: readers of memory-backed files, sizes of pinned copies, registered memory."""

import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from benchmarks.gpu.subject import Subject
from runtime.weights.weight_source import map_shared

_MIB: Final = 1024**2
COPY_MIB: Final = (1, 2, 8, 32, 256)


@dataclass(frozen=True, slots=True)
class Rate:
    what: str
    bytes_per_s: float


def memory_folder() -> str:
    return "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()


def measure_readers(subject: Subject, size_bytes: int, readers: Sequence[int]) -> list[Rate]:
    """From a file in memory to pinned buffers, each thread its own."""
    rates = []
    chunk = min(32 * _MIB, size_bytes // 8)
    with tempfile.NamedTemporaryFile(dir=memory_folder()) as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
        for count in readers:
            buffers = [subject.engine.allocate_pinned(chunk) for _ in range(count)]

            def fill(number: int, buffers: list[torch.Tensor] = buffers) -> None:
                view = buffers[number].numpy().data
                for at in range(number * chunk, size_bytes, len(buffers) * chunk):
                    os.preadv(file.fileno(), [view[: size_bytes - at]], at)

            with ThreadPoolExecutor(count) as threads:
                begun_s = time.perf_counter()
                list(threads.map(fill, range(count)))
                seconds = time.perf_counter() - begun_s
            rates.append(Rate(f"{count} readers", size_bytes / seconds))
    return rates


def measure_copy_sizes(subject: Subject, size_bytes: int) -> list[Rate]:
    """From pinned memory, then from a file in memory that is registered with the driver."""
    engine = subject.engine
    source, slab = engine.allocate_pinned(size_bytes), engine.allocate(size_bytes)
    _copy(subject, slab, source, size_bytes)  # what happens only once
    rates = [
        Rate(f"pinned, copies of {mib} MiB", _copy(subject, slab, source, mib * _MIB))
        for mib in COPY_MIB
        if mib * _MIB <= size_bytes
    ]
    return [*rates, *_registered(subject, slab, size_bytes)]


def _copy(subject: Subject, slab: torch.Tensor, source: torch.Tensor, chunk: int) -> float:
    begun_s = time.perf_counter()
    for at in range(0, len(slab), chunk):
        size = min(chunk, len(slab) - at)
        subject.engine.copy(slab.narrow(0, at, size), source.narrow(0, at, size))
    subject.engine.synchronize(slab)
    return len(slab) / (time.perf_counter() - begun_s)


def _registered(subject: Subject, slab: torch.Tensor, size_bytes: int) -> list[Rate]:
    """As images of tier `host` are: copies without a ring."""
    with tempfile.NamedTemporaryFile(dir=memory_folder()) as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
        source = map_shared(file.fileno(), size_bytes, name="probe")
        begun_s = time.perf_counter()
        try:
            subject.engine.register(source)
        except RuntimeError as error:
            return [Rate(f"cudaHostRegister fails: {error}", 0.0)]
        registered_s = time.perf_counter() - begun_s
        try:
            copied = _copy(subject, slab, source, 32 * _MIB)
        finally:
            subject.engine.unregister(source)
        return [
            Rate("registering memory", size_bytes / registered_s),
            Rate("registered memory, copies of 32 MiB", copied),
        ]


def rate_table(rates: Sequence[Rate]) -> str:
    """A Markdown table."""
    rows = [f"| {each.what} | {each.bytes_per_s / 1e9:.1f} |" for each in rates]
    return "\n".join(["| what | GB/s |", "|---|---|", *rows])
