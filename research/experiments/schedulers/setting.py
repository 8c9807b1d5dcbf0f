"""Settings in which the schedulers are compared: machines, memory, load, and who starts inferences.

The thesis limits a machine to two models (6.1) and gives no number of machines; the authors'
configuration has 20 (tiger-simulator). Section 5.4 varies the distribution of load over models.
"""

from dataclasses import dataclass, replace
from typing import Final

from research.experiments.schedulers.workload import Workload

THESIS: Final = "thesis"
"""The thesis's rules start inferences, and a machine does one action at a time."""
OVERLAPPING: Final = "overlapping"
"""The thesis's rules, and a machine serves one model while it loads another."""
GATEWAY: Final = "gateway"
"""The gateway's queue and the policy `colocation-queueing`, and loads overlap with inferences."""


@dataclass(frozen=True, slots=True)
class LoadDistribution:
    """The fields of `Workload` of the same names."""

    work: tuple[float, float]
    most_busy: float
    spread: float = 3.0
    slowest_weight: float = 1.0


LIGHT: Final = LoadDistribution((0.8, 1.2), 0.75)
"""More requests for fast models."""
EVEN: Final = LoadDistribution((2.2, 3.2), 2.0, spread=1.0)
"""Much the same number of requests for every model."""
HEAVY: Final = LoadDistribution((5.0, 8.0), 8.0, spread=1.0, slowest_weight=6.0)
"""Six times as many for the slowest model as for each other."""


@dataclass(frozen=True, slots=True)
class Setting:
    label: str
    machines: int = 6
    models_each: int = 2
    """Models that the memory of one machine holds."""
    inference: str = THESIS
    quantum_s: float = 2.0
    """Of round robin; not in the thesis, which calls its quanta relatively short (6.3)."""
    load: LoadDistribution | None = None
    """None: as `Workload` says."""

    def workload(self, workload: Workload) -> Workload:
        """The workload with this distribution of load over models."""
        if self.load is None:
            return workload
        return replace(
            workload,
            work=self.load.work,
            most_busy=self.load.most_busy,
            spread=self.load.spread,
            slowest_weight=self.load.slowest_weight,
        )


MAIN: Final = Setting("6 x 2")
VARIED: Final = (
    MAIN,
    Setting("6 x 1", models_each=1),
    Setting("6 x 2, quantum 0.25 s", quantum_s=0.25),
    Setting("4 x 2", machines=4),
    Setting("20 x 2", machines=20),
    Setting("20 x 1, heavy", machines=20, models_each=1, load=HEAVY),
    Setting("6 x 2, light", load=LIGHT),
    Setting("8 x 1, even", machines=8, models_each=1, load=EVEN),
    Setting("6 x 2, overlapping", inference=OVERLAPPING),
    Setting("6 x 2, our queue", inference=GATEWAY),
)
"""Machines x models on each."""
