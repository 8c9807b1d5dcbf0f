"""The comparison: every system in every load cell, repeats interleaved over the systems."""

import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.proxy.generator import BurstResult, load
from benchmarks.proxy.processes import ProcessStartFailed, machine_busy_s, post, wait_quiet
from benchmarks.proxy.serving_systems import (
    TINY,
    CoreLayout,
    ReadySystem,
    RoundSetup,
    ServingSystem,
    running,
    serving_systems,
)

_WARM_UP_S: Final = 1.0
_QUIET_CORES: Final = 0.1
_QUIET_WAIT_S: Final = 20.0
_QUIET_BUDGET_S: Final = 600.0
"""Time of one run for waiting for a quiet machine and for repeating disturbed bursts."""
FOREIGN_CORES: Final = 0.15
"""A burst during which other processes used more of the machine is repeated."""
_MAX_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class LoadCell:
    """Load on a system."""

    clients: int
    body_bytes: int

    @property
    def label(self) -> str:
        """The column's title in a table."""
        size = "tiny" if self.body_bytes < 1000 else f"{self.body_bytes // 1000} KB"
        return f"{self.clients} clients, {size}"

    @property
    def body(self) -> bytes:
        """A V1 body of that size."""
        if self.body_bytes <= len(TINY):
            return TINY
        frame = b'{"instances":["%b"]}'
        return frame % (b"x" * (self.body_bytes - len(frame) + 2))


_TINY_CELLS: Final = tuple(LoadCell(clients, len(TINY)) for clients in (1, 16, 64, 512))
_BODY_CELLS: Final = (LoadCell(16, 100_000), LoadCell(16, 220_000))
CELLS: Final = _TINY_CELLS + _BODY_CELLS
_QUICK_CELLS: Final = (_TINY_CELLS[0], _TINY_CELLS[2], _BODY_CELLS[1])


@dataclass(frozen=True, slots=True)
class LoadSample:
    """One burst of load on one system."""

    contestant: str
    setting: CoreLayout
    cell: LoadCell
    repeat: int
    load: BurstResult
    answer_status: int
    """Status of a single request just before."""
    contestant_cpu_s: float
    others_cpu_s: float
    """CPU time of the pod behind it, Redis, and the process that keeps the pod registered."""
    redis_cpu_s: float
    foreign_cores: float
    """Cores that other processes of the machine used meanwhile."""
    probe_ms: float
    """Time of a fixed piece of work just before: the machine's speed."""
    load_average: float

    @property
    def cpu_us(self) -> float:
        """The system's CPU time per request, in us."""
        return self.contestant_cpu_s / max(1, self.load.requests) * 1e6


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """Extent of a run."""

    seed: int
    repeats: int
    seconds: float
    is_quick: bool
    only: tuple[str, ...] = ()
    """Parts of systems' names; empty: all."""


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """All samples, and reasons of skipped systems."""

    samples: list[LoadSample]
    skipped: dict[str, str]


@dataclass(slots=True)
class _QuietBudget:
    """Remaining time for waiting until the machine is quiet."""

    left_s: float = _QUIET_BUDGET_S

    def wait_quiet(self) -> None:
        """Wait until other processes are almost idle, or the time is used up."""
        began_s = time.monotonic()
        wait_quiet(busy_below=_QUIET_CORES, timeout_s=max(0.0, min(_QUIET_WAIT_S, self.left_s)))
        self.left_s -= time.monotonic() - began_s


def compare(plan: ComparisonPlan) -> ComparisonResult:
    """Run the plan; takes about 25 minutes with all systems and three repeats."""
    chosen, skipped = _chosen(plan)
    comparison = _Comparison(plan, skipped)
    try:
        for repeat in range(plan.repeats):
            for setting in CoreLayout:
                here = [one for one in chosen if setting in one.layouts]
                groups = [[one for one in here if one.is_calm]]
                groups += [[one] for one in here if not one.is_calm]
                for group in groups:
                    comparison.measure_in_turns(group, setting, repeat)
    except KeyboardInterrupt:  # keep the measurements: a complete run takes long
        skipped["the rest of the plan"] = "interrupted; the figures are of the part before"
    return ComparisonResult(comparison.samples, skipped)


class _Comparison:
    """The state of one run."""

    def __init__(self, plan: ComparisonPlan, skipped: dict[str, str]) -> None:
        self._plan = plan
        self._skipped = skipped
        self._rng = random.Random(plan.seed)
        self._quiet_budget = _QuietBudget(_QUIET_BUDGET_S / 3 if plan.is_quick else _QUIET_BUDGET_S)
        self.samples: list[LoadSample] = []

    def measure_in_turns(
        self, group: Sequence[ServingSystem], setting: CoreLayout, repeat: int
    ) -> None:
        """Start a group, measure each system in a cell before the next cell, end the group.

        A machine's speed drifts within minutes, so compared systems are measured in turns.
        """
        with contextlib.ExitStack() as stack:
            path = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
            )
            ready: list[_Participant] = []
            for number, system in enumerate(group):
                folder = Path(path) / str(number)
                folder.mkdir()
                setup = setup_of(setting, folder)
                try:
                    running_system = stack.enter_context(running(system, setup))
                    ready.append(_Participant(system, running_system, setup, repeat))
                except ProcessStartFailed as error:
                    self._skipped[f"{system.name} ({setting})"] = str(error)
            for cell in _QUICK_CELLS if self._plan.is_quick else CELLS:
                if ready:
                    _report(f"repeat {repeat + 1}/{self._plan.repeats}, {setting}, {cell.label}")
                self._rng.shuffle(ready)
                for one in ready:
                    self.samples.append(self._quietest_burst(one, cell))
                    _report(_line(self.samples[-1]))

    def _quietest_burst(self, one: "_Participant", cell: LoadCell) -> LoadSample:
        """A burst on one system, repeated while other processes disturb it."""
        core = one.setup.generator_core
        load(one.ready.url, cell.body, clients=cell.clients, seconds=_WARM_UP_S, core=core)
        attempts: list[LoadSample] = []
        while len(attempts) < _MAX_ATTEMPTS:
            self._quiet_budget.wait_quiet()
            began_s = time.monotonic()
            attempts.append(_burst(one, cell, self._plan.seconds))
            if attempts[-1].foreign_cores <= FOREIGN_CORES or self._quiet_budget.left_s <= 0:
                break
            self._quiet_budget.left_s -= time.monotonic() - began_s
        return min(attempts, key=lambda sample: sample.foreign_cores)


@dataclass(frozen=True, slots=True)
class _Participant:
    """A running system of the current group."""

    system: ServingSystem
    ready: ReadySystem
    setup: RoundSetup
    repeat: int


def _chosen(plan: ComparisonPlan) -> tuple[list[ServingSystem], dict[str, str]]:
    chosen, skipped = [], {}
    for system in serving_systems():
        if plan.only and not any(part in system.name.lower() for part in plan.only):
            continue
        if system.missing is not None:
            skipped[system.name] = system.missing
        elif plan.is_quick and system.is_slow:
            skipped[system.name] = "--quick"
        else:
            chosen.append(system)
    return chosen, skipped


def setup_of(setting: CoreLayout, folder: Path, *, pod_module: str | None = None) -> RoundSetup:
    """The first and the last core of this process are used."""
    cores = sorted(os.sched_getaffinity(0))
    first, second = cores[0], cores[-1]
    match setting:
        case CoreLayout.SHARED:
            return RoundSetup(setting, {first}, {first}, second, folder, pod_module)
        case CoreLayout.ALONE:
            return RoundSetup(setting, {first}, {second}, second, folder, pod_module)
        case CoreLayout.BOTH:
            return RoundSetup(setting, {first, second}, {first, second}, second, folder, pod_module)


def _burst(one: _Participant, cell: LoadCell, seconds: float) -> LoadSample:
    ready, setup = one.ready, one.setup
    probe_ms = _probe_ms(min(setup.system_cores))
    status, _ = post(ready.url, cell.body)
    began_s = time.monotonic()
    machine_s, own_s = machine_busy_s(), ready.process.cpu_s()
    others_s = sum(other.cpu_s() for other in ready.others)
    redis_s = ready.redis.cpu_s() if ready.redis else 0.0
    burst = load(
        ready.url, cell.body, clients=cell.clients, seconds=seconds, core=setup.generator_core
    )
    own_s = ready.process.cpu_s() - own_s
    others_s = sum(other.cpu_s() for other in ready.others) - others_s
    foreign_s = machine_busy_s() - machine_s - own_s - others_s - burst.generator_cpu_s
    return LoadSample(
        contestant=one.system.name,
        setting=setup.layout,
        cell=cell,
        repeat=one.repeat,
        load=burst,
        answer_status=status,
        contestant_cpu_s=own_s,
        others_cpu_s=others_s,
        redis_cpu_s=ready.redis.cpu_s() - redis_s if ready.redis else 0.0,
        foreign_cores=max(0.0, foreign_s / (time.monotonic() - began_s)),
        probe_ms=probe_ms,
        load_average=os.getloadavg()[0],
    )


def _probe_ms(core: int) -> float:
    """Time of a fixed piece of Python on a core now, the best of three."""
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
    samples: Sequence[LoadSample], contestant: str, setting: CoreLayout, cell: LoadCell
) -> list[LoadSample]:
    """The repeats of one cell."""
    return [
        sample
        for sample in samples
        if (sample.contestant, sample.setting, sample.cell) == (contestant, setting, cell)
    ]


def _line(sample: LoadSample) -> str:
    burst = sample.load
    return (
        f"  {sample.contestant:26} {burst.requests_per_s:9,.0f}/s  p50 {burst.p50_ms:.2f} "
        f"p99 {burst.p99_ms:.2f} ms  {sample.cpu_us:6.0f} us CPU (Redis "
        f"{sample.redis_cpu_s / max(1, burst.requests) * 1e6:.0f})  {burst.errors} errors  "
        f"foreign {sample.foreign_cores:.2f}  probe {sample.probe_ms:.1f}"
    )


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
