"""A compressed slice of the trace for a real pod, and its simulation.

Time is compressed: a minute of the trace takes a second, for arrivals, policies and forecasts
(`autoscaler.plan`). Loads, inferences and heartbeats are not compressed: in the time
of the trace, which policies and the simulation use, they take sixty times as long.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from autoscaler.forecast import DemandForecaster, Forecaster
from autoscaler.forecasting.counts import ForecastInput
from autoscaler.forecasting.forecasts import Demand
from autoscaler.forecasting.history import Integers
from load.report.run import Bools, Run
from load.schema import Trace
from load.simulator.autoscaling import PlannedAutoscaler
from load.simulator.cluster.plan import ClusterPlan
from load.simulator.simulation import Simulation
from load.trace_spec import open_trace
from registry.domain.model import Tier
from registry.domain.pod import ProfilePoint
from research.experiments.prewarm.runs import GB_PER_MODEL, idle_model_h, policy_of
from research.experiments.prewarm.scenario import LOAD_S, MODEL_BYTES, TICK_S, cluster, model_names

PACE: Final = 60.0
"""Seconds of the trace in one second of the live run."""
SAMPLE: Final = "all-minilm-l6-v2"
"""The sample model whose weights every model has."""
_HEARTBEAT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class TraceSlice:
    """The replayed hours of a trace file."""

    file: str
    first_h: float
    last_h: float

    @property
    def real_time(self) -> str:
        """The trace specification at the trace's own pace."""
        return f"'{self.file}'|slice={60 * self.first_h:g}m:{60 * self.last_h:g}m"

    @property
    def compressed(self) -> str:
        """The trace specification, `PACE` times as fast."""
        return f"{self.real_time}|speed={PACE:g}"

    def trace(self) -> Trace:
        """The slice at its own pace, from time 0."""
        return open_trace(self.real_time, seed=1)

    def models(self) -> list[str]:
        """The requested models."""
        return model_names(self.trace())


@dataclass(frozen=True, slots=True)
class MemoryHeld:
    """Requests of one run by outcome, and the device memory that idle models held."""

    requests: int
    cold: int
    failed: int
    idle_model_h: float | None
    """Number of idle models on the device times hours of the trace."""


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """Medians of the live runs, in seconds of the trace."""

    load_s: Mapping[Tier, float]
    preprocess_s: float
    infer_s: float
    postprocess_s: float


def live_value(policy: str, value: float, model_bytes: int) -> float:
    """A policy's parameter, converted from the size of the simulated models to `model_bytes`."""
    match policy:
        case "predictive":
            return value * MODEL_BYTES / model_bytes
        case "greedy-dual":
            return value * GB_PER_MODEL * model_bytes / MODEL_BYTES
        case _:
            return value


def measured_times(runs: Sequence[Run]) -> MeasuredTimes:
    """Medians of the records of live runs; a tier without loads gets the scenario's time."""

    def median_s(stage: str, where: Sequence[Bools]) -> float | None:
        found = [run.stages_ms[stage][rows] for run, rows in zip(runs, where, strict=True)]
        known = np.concatenate(found)
        known = known[~np.isnan(known)]
        return float(np.median(known)) * PACE / 1000 if known.size else None

    def load_s(tier: Tier) -> float:
        found = median_s("load", [run.is_ok & _is_from(run, tier) for run in runs])
        return LOAD_S[tier] if found is None else found

    is_ok = [run.is_ok for run in runs]
    return MeasuredTimes(
        {tier: load_s(tier) for tier in LOAD_S},
        *(median_s(stage, is_ok) or 0.0 for stage in ("preprocess", "infer", "postprocess")),
    )


def _is_from(run: Run, tier: Tier) -> Bools:
    """The requests whose load started from the tier."""
    names = run.start.names
    found: Bools = run.start.codes == (names.index(tier.value) if tier.value in names else -2)
    return found


class MinuteForecaster:
    """Forecasts without burst intervals: compressed live runs have no counts per second."""

    def __init__(self, forecaster: Forecaster) -> None:
        self._forecaster = forecaster

    def due(
        self, models: tuple[str, ...], changed: Collection[str], now_s: float
    ) -> Integers | None:
        return self._forecaster.due(models, changed, now_s)

    def forecast(self, inputs: ForecastInput) -> Demand:
        return self._forecaster.forecast(replace(inputs, seconds=np.zeros_like(inputs.seconds)))


def simulate_slice(
    trace_slice: TraceSlice, policy: str, value: float, times: MeasuredTimes
) -> MemoryHeld:
    """The slice in the simulator, at the trace's own pace."""
    plan = _cluster(trace_slice.models(), times)
    loading = policy_of(policy, value)
    forecaster = MinuteForecaster(DemandForecaster(is_partial=not loading.reads_history))
    scaler = PlannedAutoscaler(loading, plan, every_s=TICK_S, forecaster=forecaster)
    run = Simulation(plan, trace_slice.trace(), autoscaler=scaler)
    starts = [start for batch in run for start in batch.column("start").to_pylist()]
    cold = sum(start != "warm" for start in starts)
    return MemoryHeld(len(starts), cold, len(starts) - run.summary.statuses[200], idle_model_h(run))


def _cluster(models: list[str], times: MeasuredTimes) -> ClusterPlan:
    """The experiment's cluster with an empty disk, and with the measured times."""
    plan = cluster(models)
    measured = [
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
    return replace(plan, models=tuple(measured), heartbeat_s=_HEARTBEAT_S * PACE)
