"""The trace and the cluster of prewarming: one pod with memory for all models."""

from dataclasses import dataclass
from typing import Final

from autoscaler.forecasting.counts import Counts, CountsParams
from load.schema import Trace
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.trace_spec import open_trace
from load.traces.batches import summarise
from registry.domain.model import ModelName, ModelSpec, Tier
from registry.domain.pod import ProfilePoint

MODEL_BYTES: Final = 4 * 10**9
"""An image model of the trace's kind; all are equal, so that the unit is the model-hour."""
LOAD_S: Final = {Tier.REMOTE: 22.7, Tier.DISK: 2.6, Tier.HOST: 0.4}
"""GenTD26, load times of base models: the median, and the fastest tenth, which are loads from
nearby; from host memory: 4 GB at 10 GB/s."""
_INFER_S: Final = 1.0
"""Not the trace's 23 s: one pod serves all requests, so that runs differ only in held models."""
TICK_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ReplayWindow:
    """Hours of a trace file: arrivals are counted from its start, simulated from `first_h`."""

    file: str
    first_h: int
    last_h: int

    @property
    def epoch_s(self) -> float:
        """Start of the simulated part, on the file's clock."""
        return self.first_h * 3600.0

    @property
    def ticks(self) -> int:
        """Ticks of a run, without the one at its end."""
        return round((self.last_h - self.first_h) * 3600.0 / TICK_S)

    def trace(self) -> Trace:
        """The simulated part, from time 0."""
        return self._slice(self.first_h, self.last_h)

    def _slice(self, first: int, last: int) -> Trace:
        return open_trace(f"'{self.file}'|slice={first}h:{last}h", seed=1)

    def counts_before(self) -> Counts:
        """The counts at the start of the simulated part."""
        counts = Counts(CountsParams(models=1_000))
        counts.advance(self.epoch_s)
        for batch in self._slice(0, self.first_h) if self.first_h else ():
            names = [f"default/{each}" for each in batch.column("model").to_pylist()]
            counts.add(names, batch.column("at_s").to_pylist(), [1] * len(names))
        return counts

    def models(self) -> list[str]:
        """Every model of the file up to the end: an autoscaler has all declared models."""
        return model_names(self._slice(0, self.last_h))


def model_names(trace: Trace) -> list[str]:
    return sorted(name.partition("/")[2] for name in summarise(trace).models)


def cluster(models: list[str]) -> ClusterPlan:
    """One pod with memory for all models, and all models on its disk."""
    pod = PodPlan("pod", slots=256, memory_bytes=MODEL_BYTES * (len(models) + 1))
    return ClusterPlan(
        nodes=(NodePlan("node", (pod,)),),
        models=tuple(
            ModelPlan(
                ModelSpec(ModelName("default", name), f"s3://models/{name}"),
                size_bytes=MODEL_BYTES,
                memory_bytes=MODEL_BYTES,
                infer=(ProfilePoint(1, _INFER_S), ProfilePoint(8, _INFER_S)),
                assets_s=0.0,
                load_s=LOAD_S,
                at={"pod": Tier.DISK},
            )
            for name in models
        ),
    )
