"""The compared rules for the number of pods: Pilotlight's autoscaler and Knative's."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Final

from autoscaler.loading_policies.predictive import predictive
from load.simulator.autoscaling import TICK_S, PlannedAutoscaler
from research.experiments.elastic.kpa import KpaParams, KpaState, kpa_pods

if TYPE_CHECKING:
    from autoscaler.forecasting.counts import Counts
    from autoscaler.policy import Limits
    from load.simulator.cluster.plan import ClusterPlan
    from load.simulator.simulated_cluster import SimulatedCluster
    from research.experiments.elastic.pod_scaler import Arrivals

_KPA_TICK_S: Final = 2.0
_SCRAPE_INTERVAL_S: Final = 1.0


class PredictiveRule:
    """The live autoscaler with its default loading policy."""

    interval_s = TICK_S

    def __init__(
        self, cluster: ClusterPlan, limits: Limits, *, pods: int, counts: Counts, epoch_s: float
    ) -> None:
        """`counts`: earlier arrivals; the run starts at `epoch_s` on the clock of `counts`."""
        self._autoscaler = PlannedAutoscaler(
            predictive(),
            cluster,
            every_s=TICK_S,
            epoch_s=epoch_s,
            counts=counts,
            limits=limits,
            pods=pods,
        )

    def plan(self, now_s: float, arrivals: Arrivals, cluster: SimulatedCluster) -> int:
        for model, at_s in arrivals:
            self._autoscaler.arrived(model, at_s)
        self._autoscaler.tick(cluster.registry.state, now_s, cluster)
        return self._autoscaler.wanted_pods or 0


class KnativeRule:
    """Pods by `kpa_pods`; every pod loads every model at its start, as a container would."""

    interval_s = _KPA_TICK_S

    def __init__(self, params: KpaParams, *, min_pods: int) -> None:
        self._params = params
        self._min_pods = min_pods
        self._state = KpaState()

    def plan(self, now_s: float, arrivals: Arrivals, cluster: SimulatedCluster) -> int:
        _load_everywhere(cluster)
        return self.pods_for(cluster.gateway.open_total, now_s, len(cluster.registry.state.pods))

    def pods_for(self, concurrency: float, now_s: float, current: int) -> int:
        """The number of pods after one more sample of the concurrency."""
        pods, self._state = kpa_pods(concurrency, current, self._state, now_s, self._params)
        return max(pods, self._min_pods)


class ScrapedKnativeRule:
    """`KnativeRule` as Knative runs it: a sample is the mean of a second, a plan every two."""

    interval_s = 0.1

    def __init__(self, params: KpaParams, *, min_pods: int) -> None:
        self._rule = KnativeRule(params, min_pods=min_pods)
        self._samples: list[int] = []
        self._scrape_s = _SCRAPE_INTERVAL_S
        self._plan_s = _KPA_TICK_S
        self._latest = min_pods
        self._planned: int | None = None

    def plan(self, now_s: float, arrivals: Arrivals, cluster: SimulatedCluster) -> int:
        _load_everywhere(cluster)
        current = len(cluster.registry.state.pods)
        self._samples.append(cluster.gateway.open_total)
        if now_s + 1e-9 >= self._scrape_s:
            self._scrape_s += _SCRAPE_INTERVAL_S
            self._latest = self._rule.pods_for(fmean(self._samples), now_s, current)
            self._samples.clear()
        if now_s + 1e-9 >= self._plan_s:
            self._plan_s += _KPA_TICK_S
            self._planned = self._latest
        return current if self._planned is None else self._planned


def _load_everywhere(cluster: SimulatedCluster) -> None:
    state = cluster.registry.state
    for name, record in state.models.items():
        for pod in state.pods:
            if pod not in state.holders(record.serving.key):
                cluster.preload(name, pod)
