"""How many pods should hold each model on their device."""

from dataclasses import dataclass
from math import ceil

import numpy as np

from autoscaler.forecasting.history import Booleans, Floats
from autoscaler.planning.pool_view import Demand, ModelView, PoolView
from registry.domain.model import Preload, Tier


@dataclass(frozen=True, slots=True)
class CopyParams:
    """How load translates to copies."""

    window_s: float = 60.0
    """Copies are for the load of the first forecast window of at least this length."""
    probability: float = 0.9
    """Quantile of the arrivals in that window; the nearest one in the forecast is used."""
    busy_share: float = 0.7
    """Maximum share of the time that a copy is busy, so that queues stay short."""
    max_wait_s: float = 2.0
    """Target time to finish queued requests in, for models without a deadline."""


def expected_copies(demand: Demand, infer_s: Floats, params: CopyParams) -> Floats:
    """(models,): copies that the forecast load keeps busy, as a fraction."""
    horizon = demand.horizon
    windows = np.asarray(horizon.windows_s)
    column = int(np.argmax(windows >= min(params.window_s, windows[-1])))
    level = int(np.argmin(np.abs(np.asarray(horizon.probabilities) - params.probability)))
    arrivals = np.nan_to_num(demand.forecast.quantiles[:, column, level], nan=0.0, posinf=0.0)
    result: Floats = arrivals * infer_s / (windows[column] * params.busy_share)
    return result


def target_copies(
    view: PoolView, expected: Floats, is_worth_holding: Booleans, params: CopyParams
) -> list[int]:
    """By row: copies for queued requests, and for the forecast if the model is worth holding."""
    by_load = np.where(is_worth_holding, np.maximum(np.ceil(expected), 1.0), 0.0).astype(np.int64)
    return [
        _bounded(model, max(count, _for_queue(model, view.time_s, params)))
        for model, count in zip(view.models, by_load.tolist(), strict=True)
    ]


def _for_queue(model: ModelView, now_s: float, params: CopyParams) -> int:
    """Warm copies, which are busy with arrivals, plus the copies that serve the queue in time."""
    if not model.waiting.requests:
        return 0
    warm_since_s = [each.since_s for each in model.holders.values() if each.is_warm]
    if warm_since_s and now_s - min(warm_since_s) < params.max_wait_s:
        return len(warm_since_s)  # the queue is being served now
    within_s = model.spec.policy.deadline_s or params.max_wait_s
    additional = ceil(model.waiting.requests * model.infer_s / max(within_s, 1e-3))
    return len(warm_since_s) + max(1, additional)


def _bounded(model: ModelView, count: int) -> int:
    policy = model.spec.policy
    if policy.preload is Preload.EAGER and policy.preload_tier is Tier.DEVICE:
        count = max(count, 1)
    count = max(count, policy.min_copies)
    return count if policy.max_copies is None else min(count, policy.max_copies)
