"""All measurements on one device, their table and their marks."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.gpu.copies import Copies, measure_copies
from benchmarks.gpu.cycles import Cycles, measure_cycles
from benchmarks.gpu.rings import RINGS, Ring, RingLoads, measure_rings, ring_table
from benchmarks.gpu.serving import Serving, measure_serving
from benchmarks.gpu.starts import DeviceStart, measure_starts, start_table
from benchmarks.gpu.subject import Subject
from benchmarks.marks import Mark
from benchmarks.quantiles import quantile, spread
from benchmarks.tiers.models import WEIGHTS
from benchmarks.tiers.ours import filled_skeleton, host_image
from runtime.device.staged_memory import StagedMemory
from runtime.engines.engine import Skeletons
from runtime.weights.weight_source import DiskWeights, WeightSource

COPY_SHARE: Final = 0.9
COPY_RATE: Final = 45e9
"""What a bus of PCIe Gen5 leaves of its 64 GB/s."""
SLOWER: Final = 1.1
_GB: Final = 1e9
_MB: Final = 1e6


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured, and with which models."""

    served: Path
    loaded: Path
    repeats: int = 5
    inferences: int = 50
    """In a row, alone and beside loads."""
    cycles: int = 50
    pinned_bytes: int = 1 << 30
    rings: tuple[Ring, ...] = RINGS
    started: tuple[Path, ...] = ()
    """Models whose cold starts are timed."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything."""

    copies: Copies
    serving: Serving
    cycles: Cycles
    rings: list[RingLoads]
    starts: list[DeviceStart]
    is_from_host: bool
    """Whether loads came from tier `host`; else it had no room, and from files in memory."""


def measure(subject: Subject, plan: Plan) -> Measured:
    """Copies, then inference beside loads, other rings, cycles, cold starts."""
    with ExitStack() as stack:
        memory = StagedMemory(subject.engine)
        stack.callback(memory.close)
        served, _ = _opener(stack, plan.served)
        loaded, is_from_host = _opener(stack, plan.loaded)
        copies = measure_copies(
            subject, memory, loaded, repeats=plan.repeats, pinned_bytes=plan.pinned_bytes
        )
        skeleton = filled_skeleton(plan.served, served(), Skeletons(), memory)
        serving = measure_serving(
            skeleton.network, memory, loaded, repeats=plan.repeats, inferences=plan.inferences
        )
        rings = measure_rings(
            subject,
            skeleton.network,
            loaded,
            rings=plan.rings,
            repeats=plan.repeats,
            inferences=plan.inferences,
        )
        skeleton.detach()
        cycles = measure_cycles(subject, memory, plan.served, served, cycles=plan.cycles)
        starts = measure_starts(plan.started, memory, repeats=plan.repeats)
    return Measured(copies, serving, cycles, rings, starts, is_from_host)


def _opener(stack: ExitStack, folder: Path) -> tuple[Callable[[], WeightSource], bool]:
    opened = stack.enter_context(host_image(folder))
    if opened is not None:
        return opened, True
    return (lambda: DiskWeights([folder / WEIGHTS])), False


def summary(measured: Measured) -> str:
    """Markdown tables."""
    tables = [_main_table(measured), ring_table(measured.rings), start_table(measured.starts)]
    return "\n\n".join(tables)


def _main_table(measured: Measured) -> str:
    copies, serving, cycles = measured.copies, measured.serving, measured.cycles
    pinned, load = (spread([rate / _GB for rate in each]) for each in (copies.pinned, copies.load))
    place = "host" if measured.is_from_host else "files in memory"
    return "\n".join(
        [
            "| what | median | lowest to highest |",
            "|---|---|---|",
            f"| copy of pinned memory, GB/s | {pinned.median:.2f} |"
            f" {pinned.lowest:.2f} to {pinned.highest:.2f} |",
            f"| load of {copies.size_bytes / _MB:.0f} MB from {place}, GB/s | {load.median:.2f} |"
            f" {load.lowest:.2f} to {load.highest:.2f} |",
            _latency("inference alone, ms", serving.alone_s),
            _latency(f"inference beside {serving.loads} loads, ms", serving.beside_s),
            f"| memory in tensors after {len(cycles.allocated) - 1} more cycles, MB |"
            f" {cycles.left_bytes / _MB:+.1f} | |",
            f"| memory of the whole device, MB | {cycles.grown_bytes / _MB:+.1f} | |",
        ]
    )


def _latency(what: str, seconds: list[float]) -> str:
    took = spread([each * 1000 for each in seconds])
    p99 = quantile(seconds, 0.99) * 1000
    return (
        f"| {what} | {took.median:.2f} (p99 {p99:.2f}) | {took.lowest:.2f} to {took.highest:.2f} |"
    )


def marks(measured: Measured) -> Iterator[Mark]:
    """What the figures are held against."""
    pinned = spread(measured.copies.pinned).median
    load = spread(measured.copies.load).median
    yield Mark(
        f"host to device at {COPY_SHARE:.0%} of a pinned copy",
        f"{load / pinned:.0%} ({load / _GB:.2f} of {pinned / _GB:.2f} GB/s)",
        load >= COPY_SHARE * pinned,
    )
    yield Mark(
        f"host to device at {COPY_RATE / _GB:.0f} GB/s, on PCIe Gen5",
        f"{load / _GB:.2f} GB/s",
        load >= COPY_RATE,
    )
    alone = spread(measured.serving.alone_s).median
    beside = spread(measured.serving.beside_s).median
    yield Mark(
        f"a served model's p50 beside loads at most {SLOWER:.1f} times that alone",
        f"{beside / alone:.2f} times ({beside * 1000:.2f} against {alone * 1000:.2f} ms)",
        beside <= SLOWER * alone,
    )
    cycles = measured.cycles
    yield Mark(
        f"no byte left after {len(cycles.allocated) - 1} loads and unloads",
        f"{cycles.left_bytes} bytes in tensors",
        cycles.left_bytes <= 0,
    )
