"""The trace and the cluster of the experiment: one pod that could hold every model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autoscaler.forecasting.counts import Counts, CountsParams
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.trace_spec.trace_spec import open_trace
from registry.domain.model import ModelName, ModelSpec, Tier
from registry.domain.profile import ProfilePoint

if TYPE_CHECKING:
    from load.schema import Trace

MODEL_BYTES: Final = 4 * 10**9
"""An image model of the trace's kind; all alike, so that the unit is the model-hour."""
LOAD_S: Final = {Tier.REMOTE: 22.7, Tier.DISK: 2.6, Tier.HOST: 0.4}
"""GenTD26, load times of base models: the median, and the fastest tenth, which come from near;
from host memory: 4 GB at 10 GB/s."""
INFER_S: Final = 1.0
"""Not the trace's (23 s): one pod is to serve all, so that only what is held when differs."""
TICK_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ReplayWindow:
    """Which hours of which file: counted from the start, simulated from `first_h`."""

    file: str
    first_h: int
    last_h: int

    @property
    def epoch_s(self) -> float:
        """Start of what is simulated, on the file's clock."""
        return self.first_h * 3600.0

    @property
    def ticks(self) -> int:
        """Ticks of a run, the one at its end left out."""
        return round((self.last_h - self.first_h) * 3600.0 / TICK_S)

    def trace(self) -> Trace:
        """What is simulated, from time 0."""
        return self._slice(self.first_h, self.last_h)

    def _slice(self, first: int, last: int) -> Trace:
        return open_trace(f"'{self.file}'|slice={first}h:{last}h", seed=1)

    def counts_before(self) -> Counts:
        """The counts at the start of what is simulated."""
        counts = Counts(CountsParams(models=1_000))
        counts.advance(self.epoch_s)
        for batch in self._slice(0, self.first_h) if self.first_h else ():
            names = [f"default/{each}" for each in batch.column("model").to_pylist()]
            counts.add(names, batch.column("at_s").to_pylist(), [1] * len(names))
        return counts

    def models(self) -> list[str]:
        """Every model of the file: an autoscaler knows what is declared, asked for or not."""
        names: set[str] = set()
        for batch in self._slice(0, self.last_h):
            names.update(batch.column("model").to_pylist())
        return sorted(names)


def cluster(models: list[str]) -> ClusterPlan:
    """One pod with memory for all models, and a disk that keeps them."""
    pod = PodPlan("pod", slots=256, memory_bytes=MODEL_BYTES * (len(models) + 1))
    return ClusterPlan(
        nodes=(NodePlan("node", (pod,)),),
        models=tuple(
            ModelPlan(
                ModelSpec(ModelName("default", name), f"s3://models/{name}"),
                size_bytes=MODEL_BYTES,
                memory_bytes=MODEL_BYTES,
                infer=(ProfilePoint(1, INFER_S), ProfilePoint(8, INFER_S)),
                assets_s=0.0,
                load_s=LOAD_S,
                at={"pod": Tier.DISK},
            )
            for name in models
        ),
    )
