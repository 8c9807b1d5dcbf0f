"""Quadratic trend plus the ten strongest harmonics of the counts per minute, extrapolated.

Source: IceBreaker, Roy, Patel and Tiwari, ASPLOS 2022, section 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.baselines.measured_noise import with_measured_noise

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Floats, History

_HARMONICS: Final = 10


def _means(history: History, lags: tuple[int, ...], windows_min: Floats) -> Floats:
    bins = history.minutes.shape[1]
    length = bins // 2
    result = np.empty((history.models, len(lags), windows_min.size))
    for at, lag in enumerate(lags):
        end = max(bins - lag, length)
        past = history.minutes[:, end - length : end].astype(np.float64)
        total = np.cumsum(_extrapolate(past, int(np.ceil(windows_min.max()))), axis=1)
        result[:, at] = total[:, np.ceil(windows_min).astype(np.int64) - 1]
    return result


def _extrapolate(past: Floats, steps: int) -> Floats:
    """(models, steps): extrapolation of the past, not negative."""
    length = past.shape[1]
    time = np.arange(length + steps) / length
    powers = np.stack([time**0, time, time**2], axis=1)
    solved = past @ np.linalg.pinv(powers[:length]).T
    spectrum = np.fft.rfft(past - solved @ powers[:length].T, axis=1)
    strength = np.abs(spectrum)
    kept = min(_HARMONICS, strength.shape[1])
    weakest = np.partition(strength, -kept, axis=1)[:, -kept, None]
    waves = np.fft.irfft(np.where(strength >= weakest, spectrum, 0), n=length, axis=1)
    ahead = np.arange(steps) % length  # the harmonics repeat after the length of the past
    result: Floats = np.maximum(solved @ powers[length:].T + waves[:, ahead], 0.0)
    return result


fft: Final = with_measured_noise(_means)
