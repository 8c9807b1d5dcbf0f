"""Histories, demands, pods, models and pools for tests."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoscaler.forecasting.forecasts import Demand
from autoscaler.forecasting.history import NEVER, Floats, Forecast, ForecastHorizon, History
from autoscaler.policy import ModelView, PoolView
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, Tier
from registry.domain.pod import PodInfo, PodPhase
from registry.domain.pod_index import Residency
from registry.domain.pod_state import PodState

HORIZON = ForecastHorizon(windows_s=(60.0, 600.0), probabilities=(0.5, 0.9))
NOW_S = 10_000.0
LOAD_S = {Tier.HOST: 0.1, Tier.DISK: 1.0, Tier.REMOTE: 10.0}


def history(active: Sequence[Sequence[int]], *, now_min: int) -> History:
    """One model per sequence of minutes with arrivals; the current minute is `now_min`."""
    models, known = len(active), max(1, min(now_min, 2880))
    minutes = np.zeros((models, known), dtype=np.uint32)
    last = np.full((models, 128), NEVER, dtype=np.int64)
    for row, at in enumerate(active):
        kept = sorted(at)[-128:]
        if kept:
            last[row, -len(kept) :] = kept
        for minute in at:
            if now_min - known <= minute < now_min:
                minutes[row, minute - (now_min - known)] = 1
    return History(
        origin_s=60.0 * now_min,
        minutes=minutes,
        ten_minutes=np.zeros((models, 2016), dtype=np.uint32),
        active_minutes=last,
        since_minute=np.zeros(models, dtype=np.int64),
        recent=np.zeros(models),
    )


def demand(p_minute: Sequence[float], *, arrivals: Sequence[float] | None = None) -> Demand:
    """By model: P(arrival) in the next minute, and arrivals in it as mean and all quantiles."""
    models = len(p_minute)
    shape = (models, len(HORIZON.windows_s))
    p: Floats = np.asarray(p_minute, dtype=np.float64)
    counts = np.asarray(arrivals if arrivals is not None else [0.0] * models, dtype=np.float64)
    return Demand(
        history([[]] * models, now_min=10),
        HORIZON,
        Forecast(
            mean=np.broadcast_to(counts[:, None], shape).copy(),
            quantiles=np.broadcast_to(counts[:, None, None], (*shape, 2)).copy(),
            p_arrival=np.broadcast_to(p[:, None], shape).copy(),
        ),
        p,
    )


def spec(name: str = "m", **policy: Any) -> ModelSpec:
    """A model of namespace `default`."""
    return ModelSpec(ModelName("default", name), f"file:///{name}", policy=ModelPolicy(**policy))


def model(
    name: str = "m",
    *,
    at: Mapping[str, Tier] | None = None,
    loading: Mapping[str, Tier] | None = None,
    policy: Mapping[str, Any] | None = None,
    since_s: float = 0.0,
    size_bytes: int = 1_000,
    **values: Any,
) -> ModelView:
    """A model `at` tiers of pods, and `loading` on other pods from a tier."""
    holders = {
        pod: Residency(tier, None, since_s, size_bytes) for pod, tier in (at or {}).items()
    } | {pod: Residency(tier, tier, since_s, size_bytes) for pod, tier in (loading or {}).items()}
    values = {"load_s": LOAD_S, "infer_s": 0.1, "hold_s": 0.1, **values}
    return ModelView(spec(name, **(policy or {})), size_bytes, holders=holders, **values)


def pod(
    name: str = "p",
    *,
    used_bytes: int = 0,
    slots_busy: int = 0,
    inferring: int = 0,
    is_accepting: bool = True,
    **values: Any,
) -> PodState:
    """By default on its own node, with 10,000 bytes."""
    values = {"node": f"node-of-{name}", "memory_bytes": 10_000, **values}
    made = PodState(PodInfo(name, f"{name}:1", **values))
    made.set_used_bytes({Tier.DEVICE: used_bytes})
    made.set_counts(slots_busy, inferring)
    made.set_phase(PodPhase.READY if is_accepting else PodPhase.DRAINING)
    return made


def pool(
    pods: Sequence[PodState], models: Sequence[ModelView], *, now_s: float = NOW_S, **values: Any
) -> PoolView:
    return PoolView(now_s, {each.name: each for each in pods}, tuple(models), **values)
