"""What the thesis reports of its schedulers, and the same of our runs, seed by seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from load.experiments.schedulers.scheduler_configs import BASELINE, CLOCKWORK, OURS, ROUND_ROBIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from load.experiments.schedulers.runs import SchedulerResult

    Runs = Mapping[str, SchedulerResult]
    """Of one seed, by scheduler."""

PLAIN, RENEWED, STARVED, PER_MODEL, WHOLE = ROUND_ROBIN


@dataclass(frozen=True, slots=True)
class ThesisClaim:
    """One reported improvement: a change that is to be below or above nothing."""

    section: str
    words: str
    unit: str
    change: Callable[[Runs], float]
    is_fewer: bool = True
    """Whether the change is to be below 0."""
    fact: int | None = None
    """Where the size is stated: the number of the figure in `warsaw_facts.csv`."""

    def reported(self, facts: Mapping[int, float]) -> float | None:
        """The size in the thesis, with its sign; None: a direction alone, or no figures at hand."""
        size = None if self.fact is None else facts.get(self.fact)
        return None if size is None else (-size if self.is_fewer else size)

    def holds(self, runs: Runs) -> bool:
        """Whether the direction comes out."""
        change = self.change(runs)
        return change < 0 if self.is_fewer else change > 0


def _points(
    of: Callable[[SchedulerResult], float], later: str, before: str
) -> Callable[[Runs], float]:
    """Change of a share in percentage points."""
    return lambda runs: 100 * (of(runs[later]) - of(runs[before]))


def _percent(
    of: Callable[[SchedulerResult], float], later: str, before: str
) -> Callable[[Runs], float]:
    """Change in percent of what was before."""
    return lambda runs: 100 * (of(runs[later]) / max(1e-9, of(runs[before])) - 1)


def _missed(run: SchedulerResult) -> float:
    return run.missed


def _longest_s(run: SchedulerResult) -> float:
    return run.longest_s


def _mean_s(run: SchedulerResult) -> float:
    return run.mean_s


def _load_s(run: SchedulerResult) -> float:
    return run.load_s


def _in_spikes(run: SchedulerResult) -> float:
    return run.missed_in_spikes


_POINTS: Final = "points"
CLAIMS: Final = (
    ThesisClaim(
        "6.3",
        "Baseline: deadlines missed in spikes, against steady minutes",
        _POINTS,
        lambda runs: 100 * (runs[BASELINE].missed_in_spikes - runs[BASELINE].missed_steady),
        is_fewer=False,
    ),
    ThesisClaim(
        "6.3",
        "Clockwork against Baseline: 40th percentile of completion times",
        "%",
        _percent(lambda run: run.p40_s, CLOCKWORK, BASELINE),
    ),
    ThesisClaim(
        "6.3",
        "Clockwork against Baseline: deadlines missed in spikes",
        _POINTS,
        _points(_in_spikes, CLOCKWORK, BASELINE),
    ),
    ThesisClaim(
        "6.4",
        "renewed quantum against plain round robin: longest request",
        "%",
        _percent(_longest_s, RENEWED, PLAIN),
        fact=6,
    ),
    ThesisClaim(
        "6.4", "renewed quantum: deadlines missed", _POINTS, _points(_missed, RENEWED, PLAIN)
    ),
    ThesisClaim(
        "6.5",
        "starved first: answered within 30 s",
        _POINTS,
        _points(lambda run: run.within_30s, STARVED, RENEWED),
        is_fewer=False,
    ),
    ThesisClaim(
        "6.5", "starved first: longest request", "%", _percent(_longest_s, STARVED, RENEWED)
    ),
    ThesisClaim(
        "6.5",
        "starved first: deadlines missed, slightly more",
        _POINTS,
        _points(_missed, STARVED, RENEWED),
        is_fewer=False,
    ),
    ThesisClaim(
        "6.5",
        "starved first: how late those are that miss",
        "%",
        _percent(lambda run: run.late_s, STARVED, RENEWED),
    ),
    ThesisClaim(
        "6.6",
        "quantum per model: answered in 2 to 10 s",
        _POINTS,
        _points(lambda run: run.from_2_to_10s, PER_MODEL, STARVED),
        is_fewer=False,
    ),
    ThesisClaim(
        "6.6",
        "quantum per model: deadlines missed",
        _POINTS,
        _points(_missed, PER_MODEL, STARVED),
        fact=11,
    ),
    ThesisClaim(
        "6.7", "by deadline: deadlines missed", _POINTS, _points(_missed, WHOLE, PER_MODEL)
    ),
    ThesisClaim(
        "6.7",
        "all refinements against plain round robin: time spent on loads",
        "%",
        _percent(_load_s, WHOLE, PLAIN),
    ),
    ThesisClaim(
        "6.8",
        "all refinements against Baseline: deadlines missed",
        _POINTS,
        _points(_missed, WHOLE, BASELINE),
    ),
    ThesisClaim(
        "6.8",
        "all refinements against Baseline: mean completion time",
        "%",
        _percent(_mean_s, WHOLE, BASELINE),
    ),
    ThesisClaim(
        "6.8",
        "all refinements against Baseline: longest request",
        "%",
        _percent(_longest_s, WHOLE, BASELINE),
    ),
    ThesisClaim(
        "6.8",
        "all refinements against Clockwork: deadlines missed",
        _POINTS,
        _points(_missed, WHOLE, CLOCKWORK),
    ),
    ThesisClaim(
        "6.8",
        "Clockwork against Baseline: time spent on loads",
        "%",
        _percent(_load_s, CLOCKWORK, BASELINE),
    ),
    ThesisClaim(
        "ours",
        "predictive against Baseline: deadlines missed",
        _POINTS,
        _points(_missed, OURS, BASELINE),
    ),
    ThesisClaim(
        "ours",
        "predictive against all refinements: deadlines missed",
        _POINTS,
        _points(_missed, OURS, WHOLE),
    ),
    ThesisClaim(
        "ours",
        "predictive against Clockwork: deadlines missed",
        _POINTS,
        _points(_missed, OURS, CLOCKWORK),
    ),
)


def by_seed(outcomes: Sequence[SchedulerResult]) -> list[Runs]:
    """The runs of each seed, in the order of seeds."""
    seeds = sorted({each.seed for each in outcomes})
    return [{each.scheduler: each for each in outcomes if each.seed == seed} for seed in seeds]
