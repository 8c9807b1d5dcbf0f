"""Simple methods: naive, seasonal naive (a day), and an exponential average."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.baselines.measured_noise import arrivals, with_measured_noise
from autoscaler.forecasting.history import MINUTES_OF_DAY

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Floats, History

HALF_LIFE_MIN: Final = 30.0


def _last_window(history: History, lags: tuple[int, ...], windows_min: Floats) -> Floats:
    whole = np.ceil(windows_min).astype(np.int64)
    columns = [
        arrivals(history, tuple(lag + int(each) for lag in lags), np.array([each]))[..., 0]
        for each in whole
    ]
    return np.stack(columns, axis=-1)


def _same_window_yesterday(history: History, lags: tuple[int, ...], windows_min: Floats) -> Floats:
    return arrivals(history, tuple(lag + MINUTES_OF_DAY for lag in lags), windows_min)


def _exponential_average(history: History, lags: tuple[int, ...], windows_min: Floats) -> Floats:
    age = np.arange(history.minutes.shape[1] - 1, -1, -1.0)[:, None] - np.asarray(lags)
    decay = np.where(age >= 0, np.exp2(-np.maximum(age, 0) / HALF_LIFE_MIN), 0.0)
    decay *= 1 - 2 ** (-1 / HALF_LIFE_MIN)
    levels = history.minutes.astype(np.float32) @ decay.astype(np.float32)
    result: Floats = levels[..., None].astype(np.float64) * windows_min
    return result


naive: Final = with_measured_noise(_last_window)
seasonal_naive: Final = with_measured_noise(_same_window_yesterday)
ewma: Final = with_measured_noise(_exponential_average)
