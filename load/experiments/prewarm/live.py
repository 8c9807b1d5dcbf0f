"""A slice of the trace, compressed, for a real pod; and the simulation of the same.

Time is compressed: a minute of the trace is a second, for arrivals, policies and forecasts alike
(`autoscaler.planning.time_scale`). Loads, inferences and heartbeats take the time they take, so to
the policies they look sixty times as long, and the simulation has them so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from load.experiments.prewarm.runs import GB_PER_MODEL, policy_of
from load.experiments.prewarm.scenario import LOAD_S, MODEL_BYTES, TICK_S, cluster
from load.simulator.autoscaling import PlannedAutoscaler
from load.simulator.simulation import Simulation
from load.trace_spec.trace_spec import open_trace
from registry.domain.profile import ProfilePoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from load.report.run import Bools, Run
    from load.schema import Trace
    from load.simulator.cluster.plan import ClusterPlan
    from registry.domain.model import Tier

PACE: Final = 60.0
"""Seconds of the trace in one of the live run."""
SAMPLE: Final = "all-minilm-l6-v2"
"""The weights of every model."""
_HEARTBEAT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Slice:
    """What is played."""

    file: str
    first_h: float
    last_h: float

    @property
    def real_time(self) -> str:
        """The slice of the file at the trace's own pace."""
        return f"'{self.file}'|slice={60 * self.first_h:g}m:{60 * self.last_h:g}m"

    @property
    def compressed(self) -> str:
        """The same, `PACE` times as fast."""
        return f"{self.real_time}|speed={PACE:g}"

    def trace(self) -> Trace:
        """The slice, from time 0, for the simulator."""
        return open_trace(self.real_time, seed=1)

    def models(self) -> list[str]:
        """The models that are asked for in it."""
        names: set[str] = set()
        for batch in self.trace():
            names.update(batch.column("model").to_pylist())
        return sorted(names)


@dataclass(frozen=True, slots=True)
class MemoryHeld:
    """What a run came to."""

    requests: int
    cold: int
    failed: int
    idle_model_h: float | None
    """Of the trace's hours."""


def live_value(policy: str, value: float, model_bytes: int) -> float:
    """The parameter for models of another size than the trace's."""
    match policy:
        case "predictive":
            return value * MODEL_BYTES / model_bytes
        case "greedy-dual":
            return value * GB_PER_MODEL * model_bytes / MODEL_BYTES
        case _:
            return value


# The simulation of the same


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """Medians of the live runs, in seconds of the trace."""

    load_s: Mapping[Tier, float]
    preprocess_s: float
    infer_s: float
    postprocess_s: float


def times_of(runs: Sequence[Run]) -> MeasuredTimes:
    """From the records of live runs; a tier that no load started from has the trace's time."""

    def median_s(stage: str, where: Sequence[Bools] | None = None) -> float | None:
        found = [each.stages_ms[stage][each.is_ok if where is None else where[at]]
                 for at, each in enumerate(runs)]  # fmt: skip
        known = np.concatenate(found)
        known = known[~np.isnan(known)]
        return float(np.median(known)) * PACE / 1000 if known.size else None

    def load_s(tier: Tier) -> float:
        found = median_s("load", [each.is_ok & _began(each, tier) for each in runs])
        return LOAD_S[tier] if found is None else found

    return MeasuredTimes(
        {tier: load_s(tier) for tier in LOAD_S},
        *(median_s(stage) or 0.0 for stage in ("preprocess", "infer", "postprocess")),
    )


def _began(run: Run, tier: Tier) -> Bools:
    names = run.start.names
    code = names.index(tier.value) if tier.value in names else -2
    found: Bools = run.start.codes == code
    return found


def simulated(piece: Slice, policy: str, value: float, times: MeasuredTimes) -> MemoryHeld:
    """The slice in the simulator, at the trace's own pace."""
    described = _cluster(piece.models(), times)
    scaler = PlannedAutoscaler(policy_of(policy, value), described, every_s=TICK_S)
    simulation = Simulation(described, piece.trace(), autoscaler=scaler)
    requests = cold = 0
    for batch in simulation:
        starts = batch.column("start").to_pylist()
        requests += len(starts)
        cold += sum(start != "warm" for start in starts)
    summary = simulation.summary
    idle_h = summary.wasted_memory_byte_s / MODEL_BYTES / 3600
    return MemoryHeld(requests, cold, requests - summary.statuses[200], idle_h)


def _cluster(models: list[str], times: MeasuredTimes) -> ClusterPlan:
    """The experiment's cluster with nothing on its disk, and with times as they were live."""
    plan = cluster(models)
    alike = [
        replace(
            each,
            infer=(ProfilePoint(1, times.infer_s),),
            preprocess_s=times.preprocess_s,
            postprocess_s=times.postprocess_s,
            load_s=times.load_s,
            at={},
        )
        for each in plan.models
    ]
    return replace(plan, models=tuple(alike), heartbeat_s=_HEARTBEAT_S * PACE)
