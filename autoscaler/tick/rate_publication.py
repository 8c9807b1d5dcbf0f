"""What gateways are told about expected arrivals, and when. Pure: time is an argument."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.planning.expected_arrivals import arrivals_per_s, mean_per_s, quantiles_per_s
from registry.domain.expected_rates import Band, ExpectedRates

if TYPE_CHECKING:
    from autoscaler.planning.pool_view import PoolView

PUBLISH_INTERVAL_S: Final = 5.0
MIN_PER_S: Final = 1e-5
"""Models below this rate are left out: two arrivals a day."""


class RatePublication:
    """When the rates of one pool were published last. Used by one task only."""

    def __init__(self) -> None:
        self._published_s = -inf

    def next_rates(
        self, view: PoolView, now_s: float, *, time_scale: float = 1.0
    ) -> ExpectedRates | None:
        """The rates to publish now; None if none are due or there is no forecast.

        The forecast's clock is `time_scale` times as fast as that of `now_s`.
        """
        if view.demand is None or 0 <= now_s - self._published_s < PUBLISH_INTERVAL_S:
            return None
        self._published_s = now_s
        rates = (arrivals_per_s(view.demand) * time_scale).tolist()
        per_s = {
            model.key: rate
            for model, rate in zip(view.models, rates, strict=True)
            if rate >= MIN_PER_S
        }
        band = (
            mean_per_s(view.demand),
            quantiles_per_s(view.demand, 0.5),
            quantiles_per_s(view.demand, 0.99),
        )
        scaled = (np.stack(band, axis=1) * time_scale).tolist()
        bands = {
            model.key: Band(*scaled[row])
            for row, model in enumerate(view.models)
            if model.key in per_s
        }
        return ExpectedRates(per_s, now_s, bands)
