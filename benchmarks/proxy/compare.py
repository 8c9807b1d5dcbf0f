"""The comparison: every contestant in every cell, repeats interleaved over the contestants."""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.proxy.contestants import TINY, Place, Setting, contestants, running
from benchmarks.proxy.generator import load
from benchmarks.proxy.processes import StartFailed, answer_of, machine_busy_s, wait_quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.proxy.contestants import Contestant, Round
    from benchmarks.proxy.generator import Load

_WARM_UP_S: Final = 1.0
_QUIET_CORES: Final = 0.1
_QUIET_WAIT_S: Final = 20.0
_PATIENCE_S: Final = 600.0
"""Longest that one run waits for others, and repeats bursts they disturbed, all cells together."""
FOREIGN_CORES: Final = 0.15
"""A burst during which others used more of the machine than this is made again."""
_MOST_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Cell:
    """What is asked of a contestant."""

    clients: int
    body_bytes: int

    @property
    def label(self) -> str:
        """How the cell is headed in a table."""
        size = "tiny" if self.body_bytes < 1000 else f"{self.body_bytes // 1000} KB"
        return f"{self.clients} clients, {size}"

    @property
    def body(self) -> bytes:
        """A V1 body of that size."""
        if self.body_bytes <= len(TINY):
            return TINY
        frame = b'{"instances":["%b"]}'
        return frame % (b"x" * (self.body_bytes - len(frame) + 2))


_TINY_CELLS: Final = tuple(Cell(clients, len(TINY)) for clients in (1, 16, 64, 512))
_BODY_CELLS: Final = (Cell(16, 100_000), Cell(16, 220_000))
CELLS: Final = _TINY_CELLS + _BODY_CELLS
_QUICK_CELLS: Final = (_TINY_CELLS[0], _TINY_CELLS[2], _BODY_CELLS[1])


@dataclass(frozen=True, slots=True)
class Sample:
    """One burst of load on one contestant."""

    contestant: str
    setting: Setting
    cell: Cell
    repeat: int
    load: Load
    answer_status: int
    """Of a single request just before."""
    contestant_cpu_s: float
    others_cpu_s: float
    """CPU time of the pod behind it, Redis, and what keeps the registration."""
    foreign_cores: float
    """Cores that processes of nobody here were using meanwhile."""
    load_average: float

    @property
    def cpu_us(self) -> float:
        """The contestant's CPU time per request, in us."""
        return self.contestant_cpu_s / max(1, self.load.requests) * 1e6


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does."""

    seed: int
    repeats: int
    seconds: float
    is_quick: bool
    only: tuple[str, ...] = ()
    """Parts of contestants' names; empty: all."""


@dataclass(frozen=True, slots=True)
class Compared:
    """All samples, and who could not take part for which reason."""

    samples: list[Sample]
    skipped: dict[str, str]


@dataclass(slots=True)
class _Patience:
    """What is left of the time for waiting until the machine is quiet."""

    left_s: float = _PATIENCE_S

    def wait_quiet(self) -> None:
        """Wait until others do next to nothing, or patience is at its end."""
        began_s = time.monotonic()
        wait_quiet(busy_below=_QUIET_CORES, timeout_s=max(0.0, min(_QUIET_WAIT_S, self.left_s)))
        self.left_s -= time.monotonic() - began_s


def compare(plan: Plan) -> Compared:
    """Run the plan; takes some 10 to 20 minutes with all contestants and three repeats."""
    chosen, skipped = _chosen(plan)
    samples: list[Sample] = []
    rng = random.Random(plan.seed)
    patience = _Patience(_PATIENCE_S / 3 if plan.is_quick else _PATIENCE_S)
    for repeat in range(plan.repeats):
        turns = [(one, setting) for one in chosen for setting in one.settings]
        rng.shuffle(turns)
        for contestant, setting in turns:
            if (turn := f"{contestant.name} ({setting})") in skipped:
                continue
            _tell(f"repeat {repeat + 1}/{plan.repeats}: {contestant.name}, setting {setting}")
            with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as path:
                place = _place(setting, Path(path))
                try:
                    with running(contestant, place) as ready:
                        samples += _measure(contestant, ready, place, plan, repeat, patience)
                except StartFailed as error:
                    skipped[turn] = str(error)
                    _tell(f"  skipped: {error}")
    return Compared(samples, skipped)


def _chosen(plan: Plan) -> tuple[list[Contestant], dict[str, str]]:
    chosen, skipped = [], {}
    for contestant in contestants():
        if plan.only and not any(part in contestant.name.lower() for part in plan.only):
            continue
        if contestant.missing is not None:
            skipped[contestant.name] = contestant.missing
        elif plan.is_quick and contestant.is_slow:
            skipped[contestant.name] = "--quick"
        else:
            chosen.append(contestant)
    return chosen, skipped


def _place(setting: Setting, folder: Path) -> Place:
    cores = sorted(os.sched_getaffinity(0))
    first, second = cores[0], cores[-1]
    match setting:
        case Setting.SHARED:
            return Place(setting, {first}, {first}, second, folder)
        case Setting.ALONE:
            return Place(setting, {first}, {second}, second, folder)
        case Setting.BOTH:
            return Place(setting, {first, second}, {first, second}, second, folder)


def _measure(
    contestant: Contestant,
    ready: Round,
    place: Place,
    plan: Plan,
    repeat: int,
    patience: _Patience,
) -> list[Sample]:
    samples = []
    for cell in _QUICK_CELLS if plan.is_quick else CELLS:
        load(ready.url, cell.body, clients=cell.clients, seconds=_WARM_UP_S,
             core=place.generator_core)  # fmt: skip
        tries: list[Sample] = []
        while len(tries) < _MOST_TRIES:
            patience.wait_quiet()
            began_s = time.monotonic()
            tries.append(_burst(contestant, ready, place, plan, cell, repeat))
            if tries[-1].foreign_cores <= FOREIGN_CORES or patience.left_s <= 0:
                break
            patience.left_s -= time.monotonic() - began_s
        quietest = min(tries, key=lambda sample: sample.foreign_cores)
        _tell(_line(quietest))
        samples.append(quietest)
    return samples


def _burst(
    contestant: Contestant, ready: Round, place: Place, plan: Plan, cell: Cell, repeat: int
) -> Sample:
    status, _ = answer_of(ready.url, cell.body)
    began_s = time.monotonic()
    machine_s, own_s = machine_busy_s(), ready.contestant.cpu_s()
    others_s = sum(other.cpu_s() for other in ready.others)
    seen = load(ready.url, cell.body, clients=cell.clients, seconds=plan.seconds,
                core=place.generator_core)  # fmt: skip
    own_s = ready.contestant.cpu_s() - own_s
    others_s = sum(other.cpu_s() for other in ready.others) - others_s
    foreign_s = machine_busy_s() - machine_s - own_s - others_s - seen.generator_cpu_s
    return Sample(
        contestant=contestant.name,
        setting=place.setting,
        cell=cell,
        repeat=repeat,
        load=seen,
        answer_status=status,
        contestant_cpu_s=own_s,
        others_cpu_s=others_s,
        foreign_cores=max(0.0, foreign_s / (time.monotonic() - began_s)),
        load_average=os.getloadavg()[0],
    )


def samples_of(
    samples: Sequence[Sample], contestant: str, setting: Setting, cell: Cell
) -> list[Sample]:
    """The repeats of one cell."""
    return [
        sample
        for sample in samples
        if (sample.contestant, sample.setting, sample.cell) == (contestant, setting, cell)
    ]


def _line(sample: Sample) -> str:
    seen = sample.load
    return (
        f"  {sample.cell.label:20} {seen.requests_per_s:9,.0f}/s  p50 {seen.p50_ms:.2f} "
        f"p99 {seen.p99_ms:.2f} ms  {sample.cpu_us:6.0f} us CPU  {seen.errors} errors  "
        f"foreign {sample.foreign_cores:.2f}"
    )


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
