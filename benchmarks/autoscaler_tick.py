"""CPU time of the parts of the autoscaler's tick at 1,000 pods and 10,000 models.

Half of the models are warm, three quarters of those on two pods. Arrivals are those of
`benchmarks.forecasting`, one second of them between two plans. No pod gets a request.
"""

from collections.abc import Callable

import numpy as np

from autoscaler.desired_pods import ScalingParams, ScalingState, scale_pods
from autoscaler.forecast import DemandForecaster
from autoscaler.forecasting.counts import Counts, ForecastInput
from autoscaler.forecasting.forecasts import Demand
from autoscaler.forecasting.history import History
from autoscaler.loading_policies.predictive import predictive
from autoscaler.observe import read_pool
from autoscaler.policy import Limits
from load.simulator.memory_registry import MemoryRegistry
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec, Tier
from registry.domain.pod import PodInfo

Timed = Callable[[str, Callable[[], object]], None]


PODS = 1_000
_NOW_S = 2_016 * 600.0
_MODEL_BYTES = 10**9


def cluster(models: int, pods: int = PODS) -> ClusterState:
    registry = MemoryRegistry()
    names = [ModelName("default", f"m{row:05d}") for row in range(models)]
    specs = [ModelSpec(name, f"s3://models/{name.name}") for name in names]
    registry.put_models(specs, 0.0)
    epochs = {}
    for at in range(pods):
        name = f"pod-{at:04d}"
        address, node = f"10.0.0.1:{at + 1}", f"node-{at // 8}"
        info = PodInfo(name, address, node=node, slots=4, memory_bytes=16 * _MODEL_BYTES)
        epochs[name] = registry.register_pod(info, 0.0)
    for row, spec in enumerate(specs[::2]):
        for copy in range(1 + (row % 4 > 0)):
            pod = f"pod-{(row * 7 + copy * 13) % pods:04d}"
            registry.set_tier(pod, epochs[pod], spec.key, Tier.DEVICE, _MODEL_BYTES, 0.0)
    return registry.state


def counted(history: History) -> Counts:
    """Counts with a part of the history."""
    counts = Counts()
    counts.advance(_NOW_S)
    names = names_of(history.models)
    for name in names:
        counts.add_model(name)
    for back in range(0, 2_880, 20):  # one minute in twenty, since adding takes time
        column = history.minutes[:, -1 - back]
        rows = np.flatnonzero(column)
        times_s = [_NOW_S - 60.0 * (back + 1)] * rows.size
        counts.add([names[row] for row in rows], times_s, column[rows].tolist())
    return counts


def names_of(models: int) -> tuple[str, ...]:
    return tuple(f"default/m{row:05d}" for row in range(models))


def measure(history: History, timed: Timed) -> None:
    """Time each part by a call of `timed` with its name and function."""
    models = history.models
    names, state = names_of(models), cluster(models)
    rng = np.random.default_rng(2)
    per_minute = 10 ** rng.uniform(-4, 1, models)
    counts, forecaster = counted(history), DemandForecaster()
    now_s = _NOW_S
    demand = forecaster.forecast(_inputs(counts, names, now_s, forecaster))

    def forecast_next() -> None:
        nonlocal now_s, demand
        now_s += 2.0
        arrived = np.flatnonzero(rng.poisson(per_minute / 30))
        changed = {names[row] for row in arrived.tolist()}
        counts.advance(now_s)
        counts.add(sorted(changed), [now_s] * len(changed), [1] * len(changed))
        demand = forecaster.forecast(_inputs(counts, names, now_s, forecaster, changed))

    def forecast_all() -> None:
        forecaster.forecast(_inputs(counts, names, now_s, None))

    for _ in range(6):  # until every model has been due once
        forecast_next()
    timed("tick: copy of counts and forecast of what is due", forecast_next)
    timed("  the same of all models", forecast_all)
    timed("tick: view, plan, pods", lambda: _plan(state, demand))


def _inputs(
    counts: Counts,
    names: tuple[str, ...],
    now_s: float,
    forecaster: DemandForecaster | None,
    changed: set[str] | None = None,
) -> ForecastInput:
    rows = None if forecaster is None else forecaster.due(names, changed or set(), now_s)
    indices = counts.rows_of(names)
    chosen = indices if rows is None else indices[rows]
    return ForecastInput(names, rows, counts.history(now_s, chosen), counts.recent_seconds(indices))


def _plan(state: ClusterState, demand: Demand) -> None:
    policy = predictive()
    view = read_pool(state, _NOW_S, limits=Limits(0, PODS), demand=demand)
    policy.plan(view, policy.start)
    scale_pods(view, ScalingState(), ScalingParams())
