"""What it is worth to hold each model on each tier: expected seconds of cold start saved per byte.

A tier saves the time of a load from the next lower tier that is worth holding. It is worth holding
while P(arrival within a window) x seconds saved exceeds bytes x window x the price of its memory.
The window is as short as a load allows, a minute at least: what is not worth holding for the next
minute can be brought later. Rows of arrays are the models of the view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from registry.domain.model import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.forecasting.history import Booleans, Floats
    from autoscaler.planning.pool_view import Demand, PoolView

RISING: Final = (Tier.DISK, Tier.HOST, Tier.DEVICE)
"""Tiers that can be worth holding, farthest first."""
_MINUTE_S: Final = 60.0
_GB_HOUR: Final = 1e9 * 3600.0


@dataclass(frozen=True, slots=True)
class Prices:
    """What a gigabyte held for an hour must save of cold starts, in seconds, per tier."""

    device: float = 3.0
    host: float = 0.05
    disk: float = 0.001

    def per_byte_s(self, tier: Tier) -> float:
        """Seconds saved per byte and second."""
        prices = {Tier.DEVICE: self.device, Tier.HOST: self.host, Tier.DISK: self.disk}
        return prices[tier] / _GB_HOUR


@dataclass(frozen=True, slots=True)
class HoldingValue:
    """What the tiers are worth to each model now."""

    per_s: Floats
    """(models,): P(arrival) per second."""
    saved_s: Mapping[Tier, Floats]
    """(models,): seconds saved per arrival by holding the model there; 0 where it is no gain."""
    margin: Mapping[Tier, Floats]
    """(models,): what it saves over what it costs; above 1: worth it."""
    is_worth: Mapping[Tier, Booleans]

    def saves(self, row: int) -> float:
        """Seconds of cold start saved per second by a model's place on a device."""
        return float(self.per_s[row] * self.saved_s[Tier.DEVICE][row])


def holding_value(view: PoolView, demand: Demand, prices: Prices) -> HoldingValue:
    """The worth of each tier for each model. Tiers no pod has a budget of are left out."""
    models = view.models
    load_s = _load_times(view)
    size = np.array([max(1, each.size_bytes) for each in models], dtype=np.float64)
    per_s = _arrivals_per_s(demand, load_s[Tier.REMOTE])
    from_s = load_s[Tier.REMOTE]
    saved: dict[Tier, Floats] = {}
    margin: dict[Tier, Floats] = {}
    is_worth: dict[Tier, Booleans] = {}
    for tier in RISING:
        saved[tier] = np.maximum(from_s - load_s[tier], 0.0)
        if tier is Tier.HOST and not _has_host(view):
            saved[tier] = np.zeros(size.size)
        cost = np.maximum(size * prices.per_byte_s(tier), 1e-12)
        margin[tier] = per_s * saved[tier] / cost
        is_worth[tier] = margin[tier] > 1
        from_s = np.where(is_worth[tier], load_s[tier], from_s)
    return HoldingValue(per_s, saved, margin, is_worth)


def _load_times(view: PoolView) -> dict[Tier, Floats]:
    """(models,) per tier; a farther one is at least as slow as a nearer one.

    Estimates of what was not measured yet may say otherwise.
    """
    found: dict[Tier, Floats] = {}
    least: Floats = np.zeros(len(view.models))
    for tier in (*reversed(RISING), Tier.REMOTE):
        least = np.maximum(least, [each.load_from_s(tier) for each in view.models])
        found[tier] = least
    return found


def _arrivals_per_s(demand: Demand, load_s: Floats) -> Floats:
    """(models,): over the next minute, or over the first window that a load fits in if longer."""
    per_s = demand.p_minute / _MINUTE_S
    for column, window_s in enumerate(demand.question.windows_s):
        before_s = demand.question.windows_s[column - 1] if column else 0.0
        is_it = (load_s > _MINUTE_S) & (load_s <= window_s) & (load_s > before_s)
        per_s = np.where(
            is_it, np.maximum(per_s, demand.forecast.p_arrival[:, column] / window_s), per_s
        )
    result: Floats = np.nan_to_num(per_s, nan=0.0, posinf=0.0)
    return result


def _has_host(view: PoolView) -> bool:
    return any(each.budget_bytes.get(Tier.HOST, 0) for each in view.pods.values())
