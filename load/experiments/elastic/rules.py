"""The two rules that are compared: the autoscaler's own, and Knative's."""

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
    from load.experiments.elastic.scaler import PoolObservations
    from load.simulator.simulated_cluster import SimulatedCluster
    from registry.domain.model import ModelName

TICK_S: Final = 0.5
FORECAST_S: Final = 2.0
KPA_TICK_S: Final = 2.0
SCRAPE_S: Final = 1.0


class Ours:
    """The default loading policy and `scale_pods`, with forecasts every two seconds."""

    every_s = TICK_S

    def __init__(
        self, limits: Limits, *, pods: int, counts: Counts | None = None, epoch_s: float = 0.0
    ) -> None:
        """`counts` of what came before; the run begins at `epoch_s` of their clock."""
        self._limits = limits
        self._policy = predictive()
        self._pods = ScalingState(current=pods)
        self._counts = counts
        self._epoch_s = epoch_s
        self._forecasts = LiveForecasts()
        self._demand: Demand | None = None
        self._forecast_at_s = -FORECAST_S
        self._told: dict[ModelName, int] = {}
        self._last_s: dict[ModelName, float] = {}

    def plan(self, now_s: float, seen: PoolObservations, actions: SimulatedCluster) -> int:
        """As the live autoscaler's tick."""
        arrived = {name: count - self._told.get(name, 0) for name, count in seen.asked.items()}
        self._told = dict(seen.asked)
        self._last_s |= {name: now_s for name, count in arrived.items() if count}
        self._forecast(now_s, seen, arrived)
        view = read_pool(
            seen.state,
            now_s,
            Observations(
                arrived=arrived,
                last_arrival_s=self._last_s,
                waiting=seen.waiting,
            ),
            limits=self._limits,
            demand=self._demand,
        )
        planned, _ = self._policy.plan(view, None)
        scaling, self._pods = scale_pods(view, self._pods, ScalingParams())
        for action in planned:  # after all plans: the view changes with what is begun
            if isinstance(action, Load):
                actions.preload(name_of_key(action.key), action.pod, action.tier)
            elif isinstance(action, Demote):
                actions.demote(name_of_key(action.key), action.pod, action.tier)
        wishes = [each.pods for each in scaling if isinstance(each, SetPods)]
        return wishes[0] if wishes else self._pods.current or 0

    def _forecast(
        self, now_s: float, seen: PoolObservations, arrived: dict[ModelName, int]
    ) -> None:
        if self._counts is None:
            return
        at_s = self._epoch_s + now_s
        self._counts.advance(at_s)
        new = [(str(name), count) for name, count in arrived.items() if count]
        if new:
            names, counts = zip(*new, strict=True)
            self._counts.add(names, [at_s] * len(new), counts)
        if now_s - self._forecast_at_s >= FORECAST_S:
            self._forecast_at_s = now_s
            models = tuple(str(name) for name in sorted(seen.state.models))
            self._demand = self._forecasts(self._counts, models, at_s)


class Knative:
    """Pods by `kpa_pods`; each pod has the model from its start on, as a container has."""

    every_s = KPA_TICK_S

    def __init__(self, params: KpaParams, *, least: int) -> None:
        self._params = params
        self._least = least
        self._state = KpaState()

    def plan(self, now_s: float, seen: PoolObservations, actions: SimulatedCluster) -> int:
        """Load what pods lack, and say how many there should be."""
        load_everywhere(seen, actions)
        return self.pods_for(seen.in_system, now_s, seen)

    def pods_for(self, concurrency: float, now_s: float, seen: PoolObservations) -> int:
        """Pods to have, after one more sample."""
        pods, self._state = kpa_pods(
            concurrency, len(seen.state.pods), self._state, now_s, self._params
        )
        return max(pods, self._least)


class ScrapedKnative:
    """`Knative` by what its autoscaler gets: means of whole seconds, one each second.

    Plans every two seconds by them.
    """

    every_s = 0.1

    def __init__(self, params: KpaParams, *, least: int) -> None:
        self._rule = Knative(params, least=least)
        self._second: list[int] = []
        self._scrape_s = SCRAPE_S
        self._plan_s = KPA_TICK_S
        self._wanted = least
        self._pods: int | None = None
        """What the last plan wanted; None: there was none."""

    def plan(self, now_s: float, seen: PoolObservations, actions: SimulatedCluster) -> int:
        """Sample; the pods of the last plan, where none is due."""
        load_everywhere(seen, actions)
        self._second.append(seen.in_system)
        if now_s + 1e-9 >= self._scrape_s:
            self._scrape_s += SCRAPE_S
            self._wanted = self._rule.pods_for(fmean(self._second), now_s, seen)
            self._second.clear()
        if now_s + 1e-9 >= self._plan_s:
            self._plan_s += KPA_TICK_S
            self._pods = self._wanted
        return len(seen.state.pods) if self._pods is None else self._pods


def load_everywhere(seen: PoolObservations, actions: SimulatedCluster) -> None:
    """Every model at every pod."""
    for name, record in seen.state.models.items():
        for pod in seen.state.pods:
            if pod not in seen.state.holders(record.serving.key):
                actions.preload(name, pod)
