"""All methods by name: ours and those they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from autoscaler.forecasting.fitting import Fit
from autoscaler.forecasting.forecasts import bursty, periodic, sparse, steady, typed
from autoscaler.forecasting.history import Forecast, History, Question
from autoscaler.forecasting.peers.ewma import ewma
from autoscaler.forecasting.peers.fft import fft
from autoscaler.forecasting.peers.holt_winters import holt_winters
from autoscaler.forecasting.peers.hybrid_histogram import hybrid_histogram
from autoscaler.forecasting.peers.naive import naive
from autoscaler.forecasting.peers.seasonal_naive import seasonal_naive

Method: TypeAlias = Callable[[History, Fit, Question], Forecast]

METHODS: Final[Mapping[str, Method]] = {
    "typed": typed,
    "sparse": sparse,
    "steady": steady,
    "bursty": bursty,
    "periodic": periodic,
    "naive": naive,
    "seasonal-naive": seasonal_naive,
    "ewma": ewma,
    "holt-winters": holt_winters,
    "hybrid-histogram": hybrid_histogram,
    "fft": fft,
}
"""`typed` is the default; the next four are its parts, each for all models."""
