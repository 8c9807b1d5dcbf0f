"""The comparison: every contestant in every cell, repeats interleaved over the contestants."""

from __future__ import annotations

import contextlib
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
    probe_ms: float
    """A fixed piece of work just before: how fast the machine was."""
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
    """Run the plan; takes about 25 minutes with all contestants and three repeats."""
    chosen, skipped = _chosen(plan)
    comparison = _Comparison(plan, skipped)
    try:
        for repeat in range(plan.repeats):
            for setting in Setting:
                here = [one for one in chosen if setting in one.settings]
                groups = [[one for one in here if one.is_calm]]
                groups += [[one] for one in here if not one.is_calm]
                for group in groups:
                    comparison.take_turns(group, setting, repeat)
    except KeyboardInterrupt:  # keep what was measured: a whole run takes long
        skipped["the rest of the plan"] = "interrupted; the figures are of what came before"
    return Compared(comparison.samples, skipped)


class _Comparison:
    """The state of one run."""

    def __init__(self, plan: Plan, skipped: dict[str, str]) -> None:
        self._plan = plan
        self._skipped = skipped
        self._rng = random.Random(plan.seed)
        self._patience = _Patience(_PATIENCE_S / 3 if plan.is_quick else _PATIENCE_S)
        self.samples: list[Sample] = []

    def take_turns(self, group: Sequence[Contestant], setting: Setting, repeat: int) -> None:
        """Start a group, take each through a cell before the next cell begins, end the group.

        A machine's speed drifts within minutes, so who is compared is measured close together.
        """
        with contextlib.ExitStack() as stack:
            path = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
            )
            ready: list[_Ready] = []
            for number, contestant in enumerate(group):
                folder = Path(path) / str(number)
                folder.mkdir()
                place = _place(setting, folder)
                try:
                    begun = stack.enter_context(running(contestant, place))
                    ready.append(_Ready(contestant, begun, place, repeat))
                except StartFailed as error:
                    self._skipped[f"{contestant.name} ({setting})"] = str(error)
            for cell in _QUICK_CELLS if self._plan.is_quick else CELLS:
                if ready:
                    _tell(f"repeat {repeat + 1}/{self._plan.repeats}, {setting}, {cell.label}")
                self._rng.shuffle(ready)
                for one in ready:
                    self.samples.append(self._quietest(one, cell))
                    _tell(_line(self.samples[-1]))

    def _quietest(self, one: _Ready, cell: Cell) -> Sample:
        """A burst on one contestant, made again while others disturb it."""
        core = one.place.generator_core
        load(one.round.url, cell.body, clients=cell.clients, seconds=_WARM_UP_S, core=core)
        tries: list[Sample] = []
        while len(tries) < _MOST_TRIES:
            self._patience.wait_quiet()
            began_s = time.monotonic()
            tries.append(_burst(one, cell, self._plan.seconds))
            if tries[-1].foreign_cores <= FOREIGN_CORES or self._patience.left_s <= 0:
                break
            self._patience.left_s -= time.monotonic() - began_s
        return min(tries, key=lambda sample: sample.foreign_cores)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A contestant in its turn."""

    contestant: Contestant
    round: Round
    place: Place
    repeat: int


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


def _burst(one: _Ready, cell: Cell, seconds: float) -> Sample:
    ready, place = one.round, one.place
    probe_ms = _probe_ms(min(place.contestant_cores))
    status, _ = answer_of(ready.url, cell.body)
    began_s = time.monotonic()
    machine_s, own_s = machine_busy_s(), ready.contestant.cpu_s()
    others_s = sum(other.cpu_s() for other in ready.others)
    seen = load(ready.url, cell.body, clients=cell.clients, seconds=seconds,
                core=place.generator_core)  # fmt: skip
    own_s = ready.contestant.cpu_s() - own_s
    others_s = sum(other.cpu_s() for other in ready.others) - others_s
    foreign_s = machine_busy_s() - machine_s - own_s - others_s - seen.generator_cpu_s
    return Sample(
        contestant=one.contestant.name,
        setting=place.setting,
        cell=cell,
        repeat=one.repeat,
        load=seen,
        answer_status=status,
        contestant_cpu_s=own_s,
        others_cpu_s=others_s,
        foreign_cores=max(0.0, foreign_s / (time.monotonic() - began_s)),
        probe_ms=probe_ms,
        load_average=os.getloadavg()[0],
    )


def _probe_ms(core: int) -> float:
    """How long a fixed piece of Python takes on a core now, the best of three."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        return min(_fixed_work_s() for _ in range(3)) * 1000
    finally:
        os.sched_setaffinity(0, allowed)


def _fixed_work_s() -> float:
    began_s = time.perf_counter()
    total = 0
    for number in range(100_000):
        total += number * number % 7
    return time.perf_counter() - began_s


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
        f"  {sample.contestant:26} {seen.requests_per_s:9,.0f}/s  p50 {seen.p50_ms:.2f} "
        f"p99 {seen.p99_ms:.2f} ms  {sample.cpu_us:6.0f} us CPU  {seen.errors} errors  "
        f"foreign {sample.foreign_cores:.2f}  probe {sample.probe_ms:.1f}"
    )


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
