"""The workload: 30 minutes of counts per minute, with spikes, each arrival uniform in its bin.

After Blinowski et al. 2024, section 5.4, and their simulator: forty functions per model. Theirs
come from the Azure Functions trace of 2019, which is not to be had here; ours are drawn, and kept
to what the thesis says: around 1,700 requests per minute where it is steady (6.3), and spikes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from load.experiments.errors import ExperimentError
from load.experiments.schedulers.models import PROFILES
from load.traces.batches import arrival_batch, even_batches
from load.traces.expansion import bin_counts, expand
from load.traces.name_columns import NameColumn
from load.traces.seeds import Seed
from load.traces.transforms.attributes import model_deadline_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

BIN_S: Final = 60.0
_FUNCTIONS: Final = 40
_SLACK_S: Final = (0.5, 1.0)
_MOST_DRAWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked for."""

    minutes: int = 30
    rate_per_min: float = 1700.0
    """Where it is steady."""
    spikes: int = 3
    """Each of two minutes, in a third of the time of its own, after a quiet beginning."""
    height: float = 4.0
    """How many times as often a function that spikes is called."""
    spiking_share: float = 0.5
    """Of all functions, those that take part in a spike."""
    spread: float = 3.0
    """Standard deviation of the logarithm of functions' rates: the busiest quarter then has 99 %
    of the calls, as in Shahrad et al. 2020 (Blinowski et al., section 2.3)."""
    most_busy: float = 0.75
    """Functions are drawn again while a model alone would keep a machine busy for more of the
    steady time: Baseline, which loads a model once, is said to serve well there (section 6.3)."""
    work: tuple[float, float] = (1.8, 2.4)
    """And while all together would not keep so many machines busy: seeds differ in what is asked
    for, not in how much."""

    def spike_minutes(self, seed: int) -> list[tuple[int, int]]:
        """First minute and the one after the last of each spike."""
        rng = Seed(seed).derive("spikes").rng()
        third = self.minutes / max(1, self.spikes)
        firsts = [
            int(third * (at + 0.3) + rng.uniform(0.0, max(0.0, 0.5 * third - 2)))
            for at in range(self.spikes)
        ]
        return [(first, min(self.minutes, first + 2)) for first in firsts]

    def counts(self, seed: int) -> NDArray[np.int64]:
        """(minutes, models): requests."""
        of = Seed(seed)
        rates = self._rates(of.derive("functions").rng())
        by_minute = np.broadcast_to(rates, (self.minutes, *rates.shape)).copy()
        for at, (first, end) in enumerate(self.spike_minutes(seed)):
            spiking = of.derive("spiking", at).rng().random(rates.shape) < self.spiking_share
            by_minute[first:end] *= np.where(spiking, self.height, 1.0)
        counts: NDArray[np.int64] = of.derive("counts").rng().poisson(by_minute).sum(axis=2)
        return counts

    def _rates(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """(models, functions): calls per minute where it is steady."""
        infer_s = np.array([each.infer_s for each in PROFILES])
        for _ in range(_MOST_DRAWS):
            rates = rng.lognormal(0.0, self.spread, (len(PROFILES), _FUNCTIONS))
            rates *= self.rate_per_min / rates.sum()
            busy = rates.sum(axis=1) * infer_s / BIN_S
            if busy.max() <= self.most_busy and self.work[0] <= busy.sum() <= self.work[1]:
                return rates
        raise ExperimentError(
            f"no draw of functions keeps {self.work[0]:g} to {self.work[1]:g} machines busy, and "
            f"none of them more than {self.most_busy:g} of the time with one model, at "
            f"{self.rate_per_min:g} requests per minute; widen work or change the rate"
        )

    def trace(self, seed: int) -> Iterator[pa.RecordBatch]:
        """The arrivals, each with its model's deadline."""
        counts = self.counts(seed)
        minute, model = np.nonzero(counts)
        rows = bin_counts(BIN_S * minute, model, counts[minute, model])
        found = expand(rows, bin_s=BIN_S, cv=None, rng=Seed(seed).derive("arrivals").rng())
        due_s = deadlines_s(seed)
        by_code = np.array([due_s[each.name] for each in PROFILES])
        names = NameColumn(each.name for each in PROFILES)
        batch = arrival_batch(
            found.at_s, model=names.column(found.model), deadline_s=by_code[found.model]
        )
        yield from even_batches([batch])


def deadlines_s(seed: int) -> Mapping[str, float]:
    """By model, from arrival: 2 x latency + uniform(0.5, 1) s, drawn once per model."""
    of = Seed(seed).derive("deadlines")
    return {
        each.name: model_deadline_s(
            each.infer_s, factor=2.0, slack_s=_SLACK_S, seed=of.derive(each.name)
        )
        for each in PROFILES
    }
