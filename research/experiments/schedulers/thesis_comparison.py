"""The improvements that the thesis reports between its schedulers, compared with our runs."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from research.experiments.schedulers.scheduler_configs import (
    BASELINE,
    CLOCKWORK,
    PREDICTIVE,
    ROUND_ROBIN,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from research.experiments.schedulers.runs import SchedulerResult

    Runs = Mapping[str, SchedulerResult]
    """Results of one seed, by scheduler."""

_PLAIN, _RENEWED, _STARVED, _PER_MODEL, _REFINED = ROUND_ROBIN
_POINTS: Final = "points"
OWN_SECTION: Final = "ours"
"""In place of a section of the thesis: claims about `predictive`."""


@dataclass(frozen=True, slots=True)
class ThesisClaim:
    """A reported change of a measure between two schedulers."""

    section: str
    label: str
    unit: str
    """`points`: percentage points of a share; `%`: percent of the earlier value."""
    measure: str
    """A field of `SchedulerResult`."""
    later: str
    earlier: str
    is_fewer: bool = True
    """Whether the thesis reports a decrease."""
    fact: int | None = None
    """Number of the reported size in `warsaw_facts.csv`."""
    earlier_measure: str | None = None
    """The measure of `earlier`, if it is another."""

    def reported(self, facts: Mapping[int, float]) -> float | None:
        """The size in the thesis with its sign; None if it states a direction alone."""
        size = None if self.fact is None else facts.get(self.fact)
        return None if size is None else (-size if self.is_fewer else size)

    def change(self, runs: Runs) -> float:
        later: float = attrgetter(self.measure)(runs[self.later])
        earlier: float = attrgetter(self.earlier_measure or self.measure)(runs[self.earlier])
        if self.unit == _POINTS:
            return 100 * (later - earlier)
        return 100 * (later / max(1e-9, earlier) - 1)

    def holds(self, runs: Runs) -> bool:
        """True if the change has the reported direction."""
        change = self.change(runs)
        return change < 0 if self.is_fewer else change > 0


CLAIMS: Final = (
    ThesisClaim("6.3", "Baseline: deadlines missed in spikes, against steady minutes", _POINTS,
                "missed_in_spikes", BASELINE, BASELINE, is_fewer=False,
                earlier_measure="missed_steady"),
    ThesisClaim("6.3", "Clockwork against Baseline: 40th percentile of completion times", "%",
                "p40_s", CLOCKWORK, BASELINE),
    ThesisClaim("6.3", "Clockwork against Baseline: deadlines missed in spikes", _POINTS,
                "missed_in_spikes", CLOCKWORK, BASELINE),
    ThesisClaim("6.4", "renewed quantum against plain round robin: longest request", "%",
                "longest_s", _RENEWED, _PLAIN, fact=6),
    ThesisClaim("6.4", "renewed quantum: deadlines missed", _POINTS,
                "missed", _RENEWED, _PLAIN),
    ThesisClaim("6.5", "starved first: answered within 30 s", _POINTS,
                "within_30s", _STARVED, _RENEWED, is_fewer=False),
    ThesisClaim("6.5", "starved first: longest request", "%",
                "longest_s", _STARVED, _RENEWED),
    ThesisClaim("6.5", "starved first: deadlines missed, slightly more", _POINTS,
                "missed", _STARVED, _RENEWED, is_fewer=False),
    ThesisClaim("6.5", "starved first: how late those are that miss", "%",
                "late_s", _STARVED, _RENEWED),
    ThesisClaim("6.6", "quantum per model: answered in 2 to 10 s", _POINTS,
                "from_2_to_10s", _PER_MODEL, _STARVED, is_fewer=False),
    ThesisClaim("6.6", "quantum per model: deadlines missed", _POINTS,
                "missed", _PER_MODEL, _STARVED, fact=11),
    ThesisClaim("6.7", "by deadline: deadlines missed", _POINTS,
                "missed", _REFINED, _PER_MODEL),
    ThesisClaim("6.7", "all refinements against plain round robin: time spent on loads", "%",
                "load_s", _REFINED, _PLAIN),
    ThesisClaim("6.8", "all refinements against Baseline: deadlines missed", _POINTS,
                "missed", _REFINED, BASELINE),
    ThesisClaim("6.8", "all refinements against Baseline: mean completion time", "%",
                "mean_s", _REFINED, BASELINE),
    ThesisClaim("6.8", "all refinements against Baseline: longest request", "%",
                "longest_s", _REFINED, BASELINE),
    ThesisClaim("6.8", "all refinements against Clockwork: deadlines missed", _POINTS,
                "missed", _REFINED, CLOCKWORK),
    ThesisClaim("6.8", "Clockwork against Baseline: time spent on loads", "%",
                "load_s", CLOCKWORK, BASELINE),
    ThesisClaim(OWN_SECTION, "predictive against Baseline: deadlines missed", _POINTS,
                "missed", PREDICTIVE, BASELINE),
    ThesisClaim(OWN_SECTION, "predictive against all refinements: deadlines missed", _POINTS,
                "missed", PREDICTIVE, _REFINED),
    ThesisClaim(OWN_SECTION, "predictive against Clockwork: deadlines missed", _POINTS,
                "missed", PREDICTIVE, CLOCKWORK),
)  # fmt: skip


def by_seed(results: Sequence[SchedulerResult]) -> list[Runs]:
    """The runs of each seed, in the order of seeds."""
    seeds = sorted({each.seed for each in results})
    return [{each.scheduler: each for each in results if each.seed == seed} for seed in seeds]
