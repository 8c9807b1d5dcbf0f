"""The workload of Blinowski et al. 2024: nine models, counts per minute with spikes, deadlines.

After section 5.4 and their simulator: forty functions per model, each arrival uniform in its
minute. Their counts come from the Azure Functions trace of 2019, which is not available here. These
counts are drawn at random with the rates that the thesis states: around 1,700 requests per minute
in steady minutes (6.3), and spikes.

Latencies on c5.18xlarge, sizes, and the rule that a load takes size x 8 / 4096 Mbit/s from anywhere
come from tiger-simulator (github.com/technical-tigers/tiger-simulator at 5870cfdd, MIT, (c) 2024
Blinowski, Mrozicki, Potrzebowski, Wasowski). Its VGG16 and VGG-16 are two names with different
latencies; Stable diffusion v2 of the thesis's list has neither latency nor size there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from load.traces.batches import NameColumn, arrival_batch, even_batches
from load.traces.parameters import Seed
from load.traces.transforms import model_deadline_s
from research.experiments.harness.experiment import ExperimentError
from research.traces.counts import bin_counts, expand

BIN_S: Final = 60.0
_MBIT_PER_S: Final = 4096.0
_FUNCTIONS: Final = 40
_SLACK_S: Final = (0.5, 1.0)
_MAX_DRAWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """One model on one machine."""

    name: str
    infer_s: float
    size_mb: float

    @property
    def load_s(self) -> float:
        return self.size_mb * 8 / _MBIT_PER_S


MODELS: Final = (
    ModelTimes("MobileNet-V1", 0.01170, 16.9),
    ModelTimes("SqueezeNet", 0.00931, 0.5),
    ModelTimes("VGG-19", 0.05927, 549),
    ModelTimes("DenseNet-169", 0.07458, 55),
    ModelTimes("Whisper", 0.50674, 1500),
    ModelTimes("Resnet18", 0.02196, 135),
    ModelTimes("VGG16", 0.03880, 528),
    ModelTimes("VGG-16", 0.05672, 528),
    ModelTimes("Inception-ResNet-v2", 0.04525, 215),
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Parameters of the workload; a seed gives its functions, spikes and arrivals."""

    minutes: int = 30
    rate_per_min: float = 1700.0
    """In steady minutes."""
    spikes: int = 3
    """Number of spikes of two minutes, one in each equal part of the time after a quiet start."""
    height: float = 4.0
    """Factor on the rate of a function that takes part in a spike."""
    spiking_share: float = 0.5
    """Share of the functions that take part in a spike."""
    spread: float = 3.0
    """Standard deviation of the logarithm of functions' rates: the busiest quarter then has 99 %
    of the calls, as in Shahrad et al. 2020 (Blinowski et al., section 2.3)."""
    slowest_weight: float = 1.0
    """Factor on the rates of the slowest model's functions, before all rates are scaled."""
    most_busy: float = 0.75
    """Largest share of the steady time in which one model keeps a machine busy; beyond it functions
    are drawn again, since Baseline, which loads a model once, serves such times well
    (section 6.3)."""
    work: tuple[float, float] = (1.8, 2.4)
    """The number of machines that all models together keep busy: seeds differ in the models that
    are requested, not in the total work."""

    def spike_minutes(self, seed: int) -> list[tuple[int, int]]:
        """First minute and the minute after the last of each spike."""
        rng = Seed(seed).derive("spikes").rng()
        third = self.minutes / max(1, self.spikes)
        firsts = [
            int(third * (number + 0.3) + rng.uniform(0.0, max(0.0, 0.5 * third - 2)))
            for number in range(self.spikes)
        ]
        return [(first, min(self.minutes, first + 2)) for first in firsts]

    def counts(self, seed: int) -> NDArray[np.int64]:
        """(minutes, models): requests. Raises ExperimentError if no draw fits the parameters."""
        root = Seed(seed)
        rates = self._rates(root.derive("functions").rng())
        by_minute = np.broadcast_to(rates, (self.minutes, *rates.shape)).copy()
        for number, (first, end) in enumerate(self.spike_minutes(seed)):
            draws = root.derive("spiking", number).rng().random(rates.shape)
            by_minute[first:end] *= np.where(draws < self.spiking_share, self.height, 1.0)
        counts: NDArray[np.int64] = root.derive("counts").rng().poisson(by_minute).sum(axis=2)
        return counts

    def _rates(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """(models, functions): calls per minute in steady minutes."""
        infer_s = np.array([each.infer_s for each in MODELS])
        for _ in range(_MAX_DRAWS):
            rates = rng.lognormal(0.0, self.spread, (len(MODELS), _FUNCTIONS))
            rates[infer_s.argmax()] *= self.slowest_weight
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
        deadline_s = np.array(list(deadlines_s(seed).values()))[found.model]
        names = NameColumn(each.name for each in MODELS).column(found.model)
        yield from even_batches([arrival_batch(found.at_s, model=names, deadline_s=deadline_s)])


def deadlines_s(seed: int) -> Mapping[str, float]:
    """By model, from arrival: 2 x latency + uniform(0.5, 1) s, drawn once per model."""
    root = Seed(seed).derive("deadlines")
    return {
        each.name: model_deadline_s(
            each.infer_s, factor=2.0, slack_s=_SLACK_S, seed=root.derive(each.name)
        )
        for each in MODELS
    }
