"""CPU time of forecasting many models, and of libraries that could do parts of it.

`python -m benchmarks.forecasting [MODELS]`: process time, one thread, minimum of three repeats.
Skips libraries that are not installed (scipy and statsmodels are not dependencies).
"""

import importlib
import os
import resource
import sys
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Callable

import numpy as np

from autoscaler.forecasting import negative_binomial
from autoscaler.forecasting.counts import Counts, CountsParams
from autoscaler.forecasting.forecasts import fit
from autoscaler.forecasting.history import NEVER, ForecastHorizon, History
from benchmarks import autoscaler_tick
from research.forecasting.methods import METHODS

_MINUTES, _TENS, _ACTIVE = 2880, 2016, 128


def synthetic(models: int, seed: int = 0) -> History:
    """Models of 0.0001 to 10 arrivals per minute, a tenth of them with a period of an hour."""
    rng = np.random.default_rng(seed)
    rate = 10 ** rng.uniform(-4, 1, models)
    minutes = rng.poisson(rate[:, None], (models, _MINUTES)).astype(np.uint32)
    minutes[: models // 10] *= np.arange(_MINUTES) % 60 == 7
    active = np.full((models, _ACTIVE), NEVER, dtype=np.int64)
    for row in range(models):
        last = np.flatnonzero(minutes[row])[-_ACTIVE:]
        active[row, _ACTIVE - last.size :] = last + 10 * _TENS - _MINUTES
    return History(
        origin_s=_TENS * 600.0,
        minutes=minutes,
        ten_minutes=rng.poisson(rate[:, None] * 10, (models, _TENS)).astype(np.uint32),
        active_minutes=active,
        since_minute=np.zeros(models, dtype=np.int64),
        recent=minutes[:, -1].astype(np.float64),
    )


def cpu_s(action: Callable[[], object]) -> float:
    """Minimum process time of three runs, seconds."""
    times = []
    for _ in range(3):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    models = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    history, horizon = synthetic(models), ForecastHorizon()
    print(f"{models} models, CPU seconds")
    store = Counts(CountsParams(models=models))
    store.advance(1e9)
    names = [f"m{row}" for row in range(models)]
    store.add(names, [1e9] * models, [1] * models)
    adding = cpu_s(lambda: store.add(names, [1e9] * models, [1] * models))
    print(f"add            {adding:.3f}")
    print(f"history        {cpu_s(lambda: store.history(1e9 + 90)):.3f}")
    start = time.process_time()
    fitted = fit(history)
    print(f"fit, all       {time.process_time() - start:.3f}")
    typed = METHODS["typed"]
    print(f"typed          {cpu_s(lambda: typed(history, fitted, horizon)):.3f}")
    print(f"counts hold    {store.memory_bytes / models / 1e3:.1f} KB a model")
    autoscaler_tick.measure(history, lambda what, do: print(f"{what}: {cpu_s(do):.3f}"))
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak memory of this process: {peak_bytes / 1e6:.0f} MB")
    _libraries(history, models)


def _libraries(history: History, models: int) -> None:
    rng = np.random.default_rng(1)
    mean, size = 10 ** rng.uniform(-3, 3, (models, 4)), 10 ** rng.uniform(-1, 2, (models, 4))
    levels = (0.5, 0.9, 0.95, 0.99)
    ours = cpu_s(lambda: negative_binomial.quantiles(mean, size, levels))
    print(f"{mean.size} x 4 negative binomial quantiles: ours {ours:.3f}")
    try:
        nbinom: Any = importlib.import_module("scipy.stats").nbinom
        smoothing: Any = importlib.import_module("statsmodels.tsa.holtwinters")
    except ImportError:
        print("scipy and statsmodels are not installed")
        return

    def theirs() -> Any:
        return nbinom.ppf(levels, size[..., None], (size / (size + mean))[..., None])

    print(f"  scipy.stats.nbinom.ppf {cpu_s(theirs):.3f}")
    found = negative_binomial.quantiles(mean, size, levels)
    off = np.abs(found - theirs()) / np.maximum(np.sqrt(mean + mean**2 / size)[..., None], 1)
    print(f"  largest difference {off.max():.3f} standard deviations")
    series = history.ten_minutes[:3].astype(float) + 0.1

    def holt_winters() -> None:
        for row in series:
            smoothing.ExponentialSmoothing(
                row, trend="add", seasonal="add", seasonal_periods=144
            ).fit()

    print(f"  statsmodels Holt-Winters, fit of one model {cpu_s(holt_winters) / 3:.3f}")


if __name__ == "__main__":
    main()
