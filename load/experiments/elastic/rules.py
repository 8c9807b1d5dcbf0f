"""The compared rules for the number of pods: Pilotlight's autoscaler and Knative's."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Final

from autoscaler.loading.predictive import predictive
from autoscaler.planning.actions import Demote, Load, SetPods
from autoscaler.planning.pool_snapshot import Observations, read_pool
from autoscaler.scaling.desired_pods import ScalingParams, ScalingState, scale_pods
from load.experiments.elastic.kpa import KpaParams, KpaState, kpa_pods
from load.simulator.autoscaling import LiveForecasts
from registry.domain.model import name_of_key

if TYPE_CHECKING:
    from autoscaler.forecasting.counts import Counts
    from autoscaler.planning.pool_view import Demand, Limits
    from load.experiments.elastic.pod_scaler import PoolObservations
    from load.simulator.simulated_cluster import SimulatedCluster
    from registry.domain.model import ModelName

_TICK_S: Final = 0.5
_FORECAST_INTERVAL_S: Final = 2.0
_KPA_TICK_S: Final = 2.0
_SCRAPE_INTERVAL_S: Final = 1.0


class PredictiveRule:
    """The default loading policy and `scale_pods`, as in a tick of the live autoscaler."""

    interval_s = _TICK_S

    def __init__(
        self, limits: Limits, *, pods: int, counts: Counts | None = None, epoch_s: float = 0.0
    ) -> None:
        """`counts` of earlier arrivals, at whose clock the run starts at `epoch_s`."""
        self._limits = limits
        self._policy = predictive()
        self._scaling = ScalingState(current=pods)
        self._counts = counts
        self._epoch_s = epoch_s
        self._forecasts = LiveForecasts()
        self._demand: Demand | None = None
        self._forecast_at_s = -_FORECAST_INTERVAL_S
        self._counted: dict[ModelName, int] = {}
        self._last_arrival_s: dict[ModelName, float] = {}

    def plan(self, now_s: float, pool: PoolObservations, cluster: SimulatedCluster) -> int:
        arrived = {name: count - self._counted.get(name, 0) for name, count in pool.arrived.items()}
        self._counted = dict(pool.arrived)
        self._last_arrival_s |= {name: now_s for name, count in arrived.items() if count}
        self._update_forecast(now_s, pool, arrived)
        observations = Observations(
            arrived=arrived, last_arrival_s=self._last_arrival_s, waiting=pool.waiting
        )
        view = read_pool(pool.state, now_s, observations, limits=self._limits, demand=self._demand)
        planned, _ = self._policy.plan(view, None)
        scaling, self._scaling = scale_pods(view, self._scaling, ScalingParams())
        for action in planned:  # after all plans: loads change the view
            if isinstance(action, Load):
                cluster.preload(name_of_key(action.key), action.pod, action.tier)
            elif isinstance(action, Demote):
                cluster.demote(name_of_key(action.key), action.pod, action.tier)
        pods = [each.pods for each in scaling if isinstance(each, SetPods)]
        return pods[0] if pods else self._scaling.current or 0

    def _update_forecast(
        self, now_s: float, pool: PoolObservations, arrived: dict[ModelName, int]
    ) -> None:
        if self._counts is None:
            return
        at_s = self._epoch_s + now_s
        self._counts.advance(at_s)
        new = [(str(name), count) for name, count in arrived.items() if count]
        if new:
            names, counts = zip(*new, strict=True)
            self._counts.add(names, [at_s] * len(new), counts)
        if now_s - self._forecast_at_s >= _FORECAST_INTERVAL_S:
            self._forecast_at_s = now_s
            models = tuple(str(name) for name in sorted(pool.state.models))
            self._demand = self._forecasts(self._counts, models, at_s)


class KnativeRule:
    """Pods by `kpa_pods`; every pod loads every model at its start, as a container would."""

    interval_s = _KPA_TICK_S

    def __init__(self, params: KpaParams, *, min_pods: int) -> None:
        self._params = params
        self._min_pods = min_pods
        self._state = KpaState()

    def plan(self, now_s: float, pool: PoolObservations, cluster: SimulatedCluster) -> int:
        _load_everywhere(pool, cluster)
        return self.pods_for(pool.in_system, now_s, pool)

    def pods_for(self, concurrency: float, now_s: float, pool: PoolObservations) -> int:
        """The number of pods after one more sample of the concurrency."""
        current = len(pool.state.pods)
        pods, self._state = kpa_pods(concurrency, current, self._state, now_s, self._params)
        return max(pods, self._min_pods)


class ScrapedKnativeRule:
    """`KnativeRule` with the samples of Knative's autoscaler: means of a second, once a second.

    It plans every two seconds.
    """

    interval_s = 0.1

    def __init__(self, params: KpaParams, *, min_pods: int) -> None:
        self._rule = KnativeRule(params, min_pods=min_pods)
        self._samples: list[int] = []
        self._scrape_s = _SCRAPE_INTERVAL_S
        self._plan_s = _KPA_TICK_S
        self._latest = min_pods
        self._planned: int | None = None

    def plan(self, now_s: float, pool: PoolObservations, cluster: SimulatedCluster) -> int:
        _load_everywhere(pool, cluster)
        self._samples.append(pool.in_system)
        if now_s + 1e-9 >= self._scrape_s:
            self._scrape_s += _SCRAPE_INTERVAL_S
            self._latest = self._rule.pods_for(fmean(self._samples), now_s, pool)
            self._samples.clear()
        if now_s + 1e-9 >= self._plan_s:
            self._plan_s += _KPA_TICK_S
            self._planned = self._latest
        return len(pool.state.pods) if self._planned is None else self._planned


def _load_everywhere(pool: PoolObservations, cluster: SimulatedCluster) -> None:
    for name, record in pool.state.models.items():
        for pod in pool.state.pods:
            if pod not in pool.state.holders(record.serving.key):
                cluster.preload(name, pod)
