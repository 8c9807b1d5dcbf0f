"""An autoscaler in a run: counts arrivals, plans with the live autoscaler's own policies, and acts.

Besides the registry's copy it reads its own counts, the gateway's queue, the use of copies, and the
models' sizes. Pods are as in the cluster file: it ignores actions that change their number.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from autoscaler.forecasting.counts import Counts, CountsParams
from autoscaler.loading.loading_policies import policy_of
from autoscaler.planning.actions import Demote, Load
from autoscaler.planning.demand_forecast import FittedModel, fit_model, forecast_demand
from autoscaler.planning.pool_snapshot import Observations, read_pool
from registry.domain.model import Tier, name_of_key

if TYPE_CHECKING:
    from autoscaler.planning.actions import Action
    from autoscaler.planning.policy import LoadingPolicy
    from autoscaler.planning.pool_view import Demand
    from load.simulator.cluster.plan import ClusterPlan
    from load.simulator.simulated_cluster import SimulatedCluster
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelName

S = TypeVar("S")
TICK_S: Final = 0.5
"""The live autoscaler's time between two plans."""
FORECAST_S: Final = 2.0
"""The live autoscaler's time between two forecasts."""
FIRST_FORECAST_S: Final = 60.0
"""No forecasts before: there is too little history."""


class DemandSource(Protocol):
    """Forecasts of demand: made live, or read from an earlier run."""

    def __call__(self, counts: Counts, models: tuple[str, ...], now_s: float) -> Demand | None:
        """The demand for these models at a time; None: no forecast."""


class LiveForecasts:
    """Forecasts as the live autoscaler makes them, at every call."""

    def __init__(self) -> None:
        self._fitted: FittedModel | None = None

    def __call__(self, counts: Counts, models: tuple[str, ...], now_s: float) -> Demand | None:
        """Fit when it is due, and forecast."""
        if now_s < FIRST_FORECAST_S:
            return None
        history = counts.history_of(models, now_s)
        self._fitted = fit_model(history, models, self._fitted)
        return forecast_demand(history, self._fitted)


class PacedForecasts:
    """Live forecasts, made every `FORECAST_S`."""

    def __init__(self) -> None:
        self._forecasts = LiveForecasts()
        self._made_s = -FORECAST_S
        self._demand: Demand | None = None

    def __call__(self, counts: Counts, models: tuple[str, ...], now_s: float) -> Demand | None:
        """The last forecast, or a new one when that is too old."""
        if now_s >= self._made_s + FORECAST_S:
            self._made_s = now_s
            self._demand = self._forecasts(counts, models, now_s)
        return self._demand


class PlannedAutoscaler:
    """A loading policy in a run; see `simulation.SimulatedAutoscaler`."""

    def __init__(
        self,
        policy: LoadingPolicy[S],
        cluster: ClusterPlan,
        *,
        every_s: float = 10.0,
        epoch_s: float = 0.0,
        counts: Counts | None = None,
        forecaster: DemandSource | None = None,
        is_forecasting: bool = True,
    ) -> None:
        """`counts` are those of arrivals before the run, on a clock that is `epoch_s` at its start.

        Without `is_forecasting` nothing is counted: for policies that do not read demand.
        """
        self.every_s = every_s
        self.actions: Counter[str] = Counter()
        """Actions that had an effect, by `verb reason`."""
        self._policy = policy
        self._state = policy.start
        self._epoch_s = epoch_s
        self._counts = counts or Counts(CountsParams(models=max(1, len(cluster.models))))
        self._forecaster = forecaster or LiveForecasts()
        self._is_forecasting = is_forecasting
        self._arrived: Counter[ModelName] = Counter()
        self._last_s: dict[ModelName, float] = {}
        self._pending: list[tuple[str, float]] = []
        self._sizes = {plan.spec.key: plan.memory_bytes for plan in cluster.models}
        self._budgets = _host_budgets(cluster)

    def actions_by_verb(self) -> dict[str, dict[str, int]]:
        """`actions` by verb, then reason, sorted."""
        found: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for name, count in sorted(self.actions.items()):
            verb, _, reason = name.partition(" ")
            found[verb][reason] = count
        return dict(found)

    def arrived(self, model: ModelName, now_s: float) -> None:
        self._arrived[model] += 1
        self._last_s[model] = now_s
        if self._is_forecasting:
            self._pending.append((str(model), self._epoch_s + now_s))

    def tick(self, state: ClusterState, now_s: float, actions: SimulatedCluster) -> None:
        demand = self._forecast(state, self._epoch_s + now_s) if self._is_forecasting else None
        observations = Observations(
            arrived=self._arrived,
            last_arrival_s=self._last_s,
            waiting=actions.waiting(),
            uses=actions.uses(),
            size_bytes=self._sizes,
            budget_bytes=self._budgets,
        )
        view = read_pool(state, now_s, observations, demand=demand)
        plan, self._state = self._policy.plan(view, self._state)
        self._arrived.clear()
        for action in plan:
            self._act(action, actions)

    def _forecast(self, state: ClusterState, now_s: float) -> Demand | None:
        self._count(now_s)
        names = tuple(str(name) for name in sorted(state.models))
        return self._forecaster(self._counts, names, now_s)

    def _count(self, now_s: float) -> None:
        self._counts.advance(now_s)
        if self._pending:
            models, times_s = zip(*self._pending, strict=True)
            self._counts.add(models, times_s, [1] * len(models))
            self._pending.clear()

    def _act(self, action: Action, actions: SimulatedCluster) -> None:
        match action:
            case Load(key, pod, tier, reason):
                has_effect = actions.preload(name_of_key(key), pod, tier)
            case Demote(key, pod, tier, reason):
                has_effect = actions.demote(name_of_key(key), pod, tier)
            case _:
                return
        if has_effect:
            self.actions[f"{type(action).__name__.lower()} {reason}"] += 1


@dataclass(frozen=True, slots=True)
class LoadingOptions:
    """A loading policy by name, since policies cannot be sent to worker processes."""

    name: str
    """One of `LOADING_POLICIES`."""
    value: float | None = None
    """Its parameter, as `--loading-value` of the autoscaler; None: its default."""
    tick_s: float = TICK_S
    """Time between two plans."""

    def new_autoscaler(self, cluster: ClusterPlan) -> PlannedAutoscaler:
        policy = policy_of(self.name, self.value)
        return PlannedAutoscaler(
            policy, cluster,
            every_s=self.tick_s, forecaster=PacedForecasts(), is_forecasting=policy.reads_demand,
        )  # fmt: skip


def _host_budgets(cluster: ClusterPlan) -> dict[str, dict[Tier, int]]:
    return {
        pod.name: {Tier.HOST: node.host_memory_bytes} if node.host_memory_bytes else {}
        for node in cluster.nodes
        for pod in node.pods
    }
