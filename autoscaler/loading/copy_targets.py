"""How many pods should hold each model on their device."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from registry.domain.model import Preload, Tier

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Booleans, Floats
    from autoscaler.planning.pool_view import Demand, ModelView, PoolView


@dataclass(frozen=True, slots=True)
class CopyParams:
    """How load becomes copies."""

    window_s: float = 60.0
    """The load of the first forecast window at least so long is what copies are for."""
    probability: float = 0.9
    """The quantile of the arrivals in it, the nearest one that was forecast."""
    busy_share: float = 0.7
    """Copies are so many that none is busy for more of the time: queues stay short."""
    patience_s: float = 2.0
    """Requests that wait should be over in so long, where they have no deadline."""


def expected_copies(demand: Demand, infer_s: Floats, params: CopyParams) -> Floats:
    """(models,): copies that the forecast load keeps busy, in fractions."""
    question = demand.question
    windows = np.asarray(question.windows_s)
    column = int(np.argmax(windows >= min(params.window_s, windows[-1])))
    level = int(np.argmin(np.abs(np.asarray(question.probabilities) - params.probability)))
    arrivals = np.nan_to_num(demand.forecast.quantiles[:, column, level], nan=0.0, posinf=0.0)
    result: Floats = arrivals * infer_s / (windows[column] * params.busy_share)
    return result


def target_copies(
    view: PoolView, expected: Floats, is_worth: Booleans, params: CopyParams
) -> list[int]:
    """Per model: by forecast where it is worth it, by what waits in any case, within its bounds."""
    by_load = np.where(is_worth, np.maximum(np.ceil(expected), 1.0), 0.0).astype(np.int64)
    return [
        _bounded(model, max(count, _for_waiting(model, view.time_s, params)))
        for model, count in zip(view.models, by_load.tolist(), strict=True)
    ]


def _for_waiting(model: ModelView, now_s: float, params: CopyParams) -> int:
    """So many that the queue ends in time; copies that let it grow are busy with what comes."""
    if not model.waiting.requests:
        return 0
    warm_since_s = [each.since_s for each in model.holders.values() if each.is_warm]
    if warm_since_s and now_s - min(warm_since_s) < params.patience_s:
        return len(warm_since_s)  # what waited for the load is being served now
    within_s = model.spec.policy.deadline_s or params.patience_s
    more = ceil(model.waiting.requests * model.infer_s / max(within_s, 1e-3))
    return len(warm_since_s) + max(1, more)


def _bounded(model: ModelView, count: int) -> int:
    policy = model.spec.policy
    if policy.preload is Preload.EAGER and policy.preload_tier is Tier.DEVICE:
        count = max(count, 1)
    count = max(count, policy.min_copies)
    return count if policy.max_copies is None else min(count, policy.max_copies)
