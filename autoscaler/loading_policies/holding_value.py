"""The value of holding each model on each tier: expected seconds of cold start saved per byte.

A tier saves the time of a load from the next lower tier that is worth holding. A model is worth
holding while P(arrival within a window) x seconds saved exceeds the cost: bytes x window x price of
memory or, on a device without a price, what the load takes from other loads. The window is as short
as a load allows, but at least a minute: a model that is not worth holding for the next minute can
be loaded later. Rows of arrays are the models of the view.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from autoscaler.forecasting.forecasts import Demand, arrivals_per_s
from autoscaler.forecasting.history import Booleans, Floats
from autoscaler.policy import PoolView
from registry.domain.model import Tier
from registry.domain.prices import characteristic_time_s, eviction_loss_s

_SLOWEST_FIRST: Final = (Tier.DISK, Tier.HOST, Tier.DEVICE)
_MINUTE_S: Final = 60.0
_GB_HOUR: Final = 1e9 * 3600.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds of cold start that a gigabyte held for an hour must save, per tier."""

    device: float | None = None
    """None: no price; models stay on devices until another one needs the memory."""
    host: float = 0.05
    disk: float = 0.001
    load: float = 0.03
    """Without a price of device memory: the share of a load's time that it takes from others."""

    def per_s(self, tier: Tier, size_bytes: Floats, load_s: Floats) -> Floats:
        """(models,): seconds that holding a model on the tier must save per second."""
        if tier is Tier.DEVICE and self.device is None:
            return self.load * load_s / _MINUTE_S
        prices = {Tier.DEVICE: self.device or 0.0, Tier.HOST: self.host, Tier.DISK: self.disk}
        return size_bytes * (prices[tier] / _GB_HOUR)


@dataclass(frozen=True, slots=True)
class HoldingValue:
    """The value of each tier for each model now."""

    p_per_s: Floats
    """(models,): P(arrival) per second."""
    saved_s: Mapping[Tier, Floats]
    """(models,): seconds saved per arrival by holding the model on the tier."""
    margin: Mapping[Tier, Floats]
    """(models,): seconds saved over what holding the model costs."""
    is_worth_holding: Mapping[Tier, Booleans]
    """(models,): margin above 1."""
    rates_per_s: Floats
    """(models,): expected arrivals per second."""
    characteristic_s: float
    """How long models stay on devices after a request; at most a minute, the length of a plan."""
    cold_per_s: Floats
    """(models,): expected arrivals per second and pod; 0 for models on a device or being loaded."""
    serve_s: Floats
    """(models,): device time of one request."""

    def saved_per_s(self, row: int, copies: int = 1) -> float:
        """Seconds of waiting that one copy of a model saves per second.

        The price of its eviction (`registry.domain.prices`) divided by the time that it covers.
        """
        reload_s, rate = float(self.saved_s[Tier.DEVICE][row]), float(self.rates_per_s[row])
        serve_s = float(self.serve_s[row])
        loss_s = eviction_loss_s(reload_s, rate, self.characteristic_s, copies, serve_s)
        return loss_s / self.characteristic_s if self.characteristic_s > 0 else 0.0

    def preload_per_s(self, tier: Tier, row: int) -> float:
        """Seconds of waiting that the first preload of a model to a tier saves per second."""
        if tier is Tier.DEVICE:
            return self.saved_per_s(row)
        return float(self.p_per_s[row] * self.saved_s[tier][row])

    def delay_per_s(self, row: int, load_s: float) -> float:
        """Seconds that a load delays others at its pod, per second that its copy is held.

        Cold starts of other models that arrive during the load wait for half of it on average.
        """
        others_per_s = float(self.cold_per_s.sum() - self.cold_per_s[row])
        if others_per_s <= 0.0:
            return 0.0
        held_s = self.characteristic_s
        return others_per_s * load_s * load_s / 2.0 / held_s if held_s > 0 else inf


def holding_value(view: PoolView, demand: Demand, prices: Prices) -> HoldingValue:
    """The value of each tier for each model; host memory has none if no node has it."""
    models = view.models
    load_s = _load_times(view)
    size = np.array([max(1, each.size_bytes) for each in models], dtype=np.float64)
    p_per_s = _arrivals_per_s(demand, load_s[Tier.REMOTE])
    from_s = load_s[Tier.REMOTE]
    saved: dict[Tier, Floats] = {}
    margin: dict[Tier, Floats] = {}
    is_worth_holding: dict[Tier, Booleans] = {}
    for tier in _SLOWEST_FIRST:
        saved[tier] = np.maximum(from_s - load_s[tier], 0.0)
        if tier is Tier.HOST and not view.has_host_tier:
            saved[tier] = np.zeros(size.size)
        price = np.maximum(prices.per_s(tier, size, saved[tier]), 1e-12)
        margin[tier] = p_per_s * saved[tier] / price
        is_worth_holding[tier] = margin[tier] > 1
        from_s = np.where(is_worth_holding[tier], load_s[tier], from_s)
    rates = arrivals_per_s(demand)
    capacity_bytes = sum(each.budget_bytes for each in view.accepting)
    fitting_s = characteristic_time_s(rates.tolist(), size.tolist(), capacity_bytes)
    return HoldingValue(
        p_per_s,
        saved,
        margin,
        is_worth_holding,
        rates,
        min(fitting_s, _MINUTE_S),
        _cold_per_s(view, rates),
        np.array([each.infer_s for each in models]),
    )


def _cold_per_s(view: PoolView, rates: Floats) -> Floats:
    is_cold = [each.copies == 0 for each in view.models]
    return np.where(is_cold, rates, 0.0) / max(1, len(view.accepting))


def _load_times(view: PoolView) -> dict[Tier, Floats]:
    """(models,) by tier: seconds of a load, never shorter from a farther tier."""
    found: dict[Tier, Floats] = {}
    minimum: Floats = np.zeros(len(view.models))
    for tier in (*reversed(_SLOWEST_FIRST), Tier.REMOTE):
        minimum = np.maximum(minimum, [each.load_from_s(tier) for each in view.models])
        found[tier] = minimum
    return found


def _arrivals_per_s(demand: Demand, load_s: Floats) -> Floats:
    """(models,): in the next minute, or in the first window that is longer than a load."""
    per_s = demand.p_minute / _MINUTE_S
    for column, window_s in enumerate(demand.horizon.windows_s):
        shorter_s = demand.horizon.windows_s[column - 1] if column else 0.0
        is_first = (load_s > _MINUTE_S) & (load_s <= window_s) & (load_s > shorter_s)
        in_window = demand.forecast.p_arrival[:, column] / window_s
        per_s = np.where(is_first, np.maximum(per_s, in_window), per_s)
    result: Floats = np.nan_to_num(per_s, nan=0.0, posinf=0.0)
    return result
