"""An autoscaler in a simulated run: the live autoscaler's planner in virtual time.

Besides the cluster state it reads the gateway's queue, the use of copies, and the models' sizes.
The number of pods stays as in the cluster file, unless the caller applies `wanted_pods`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, Final

from autoscaler.desired_pods import ScalingState
from autoscaler.forecast import DemandForecaster, Forecasts
from autoscaler.forecasting.counts import Counts, CountsParams, ObservedDemand
from autoscaler.loading_policies import LOADING_POLICIES, policy_of
from autoscaler.observe import read_pool
from autoscaler.plan import Planner, RatePublication
from autoscaler.policy import Demote, Limits, Load, SetPods
from registry.domain.model import name_of_key
from registry.errors import PluginError

if TYPE_CHECKING:
    from autoscaler.forecast import Forecaster
    from autoscaler.policy import Action, LoadingPolicy
    from load.simulator.cluster.plan import ClusterPlan
    from load.simulator.simulated_cluster import SimulatedCluster
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelName

TICK_S: Final = 0.5
"""Interval between two plans of the live autoscaler."""


class PlannedAutoscaler:
    """Applies a loading policy in a run; implements `simulation.SimulatedAutoscaler`."""

    def __init__(
        self,
        policy: LoadingPolicy[Any],
        cluster: ClusterPlan,
        *,
        every_s: float = 10.0,
        epoch_s: float = 0.0,
        counts: Counts | None = None,
        forecaster: Forecaster | None = None,
        limits: Limits | None = None,
        pods: int | None = None,
    ) -> None:
        """`counts` are of arrivals before the run, on a clock that reads `epoch_s` at its start.

        `pods` is the number of pods at the start, which is then planned within `limits`; None: the
        number of pods is not planned.
        """
        self.every_s = every_s
        self.actions: Counter[str] = Counter()
        """Actions that had an effect, by `verb reason`."""
        self.wanted_pods = pods
        counts = counts or Counts(CountsParams(models=max(1, len(cluster.models))))
        self._observed = ObservedDemand(counts if policy.reads_demand else None, epoch_s=epoch_s)
        forecaster = forecaster or DemandForecaster(is_partial=not policy.reads_history)
        self._forecasts = Forecasts(self._observed, forecaster) if policy.reads_demand else None
        self._policy_name = policy.name
        self._planner = Planner(policy)
        self._planner.scaling = None if pods is None else ScalingState(current=pods)
        self._limits = limits or Limits()
        self._rates = RatePublication()
        self._arrivals: list[tuple[ModelName, float, int]] = []
        self._sizes = {plan.spec.key: plan.memory_bytes for plan in cluster.models}
        self._has_host_tier = any(node.host_memory_bytes for node in cluster.nodes)

    def actions_by_verb(self) -> dict[str, dict[str, int]]:
        """`actions` by verb, then reason, sorted."""
        found: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for name, count in sorted(self.actions.items()):
            verb, _, reason = name.partition(" ")
            found[verb][reason] = count
        return dict(found)

    def arrived(self, model: ModelName, now_s: float) -> None:
        self._arrivals.append((model, now_s, 1))

    def tick(self, state: ClusterState, now_s: float, actions: SimulatedCluster) -> None:
        self._observed.set_models(list(state.models), now_s)
        self._observed.add(self._arrivals)
        self._arrivals.clear()
        view = read_pool(
            state,
            now_s,
            arrived=self._observed.take_arrived(),
            last_arrival_s=self._observed.last_arrival_s,
            waiting=actions.waiting(),
            uses=actions.uses(),
            size_bytes=self._sizes,
            limits=self._limits,
            has_host_tier=self._has_host_tier,
        )
        if self._forecasts is not None:
            view = replace(view, demand=self._forecasts.demand(view.names, now_s))
        plan = self._planner.plan(view)
        if (failure := plan.failure) is not None:
            if self._policy_name in LOADING_POLICIES:
                raise failure
            where = extract_tb(failure.__traceback__)[-1]
            raise PluginError(
                f"loading policy {self._policy_name} raised {type(failure).__name__}: {failure} "
                f"({Path(where.filename).name}, line {where.lineno})"
            ) from failure
        rates = self._rates.next_rates(plan.view, now_s)
        if rates is not None:
            actions.publish_expected_rates(rates)
        for action in plan.actions:
            self._act(action, actions)

    def _act(self, action: Action, actions: SimulatedCluster) -> None:
        match action:
            case Load(key, pod, tier, reason):
                has_effect = actions.preload(name_of_key(key), pod, tier, action.max_other_copies)
            case Demote(key, pod, tier, reason):
                has_effect = actions.demote(name_of_key(key), pod, tier)
            case SetPods():
                self.wanted_pods = action.pods
                return
            case _:
                return
        if has_effect:
            self.actions[f"{type(action).__name__.lower()} {reason}"] += 1


@dataclass(frozen=True, slots=True)
class LoadingOptions:
    """A loading policy by name, since policies cannot be sent to worker processes."""

    name: str
    """One of `registry.policy_names.LOADING`."""
    value: float | None = None
    """Its parameter, as `--loading-value` of the autoscaler; None: its default."""
    tick_s: float = TICK_S
    """Time between two plans."""

    def new_autoscaler(self, cluster: ClusterPlan) -> PlannedAutoscaler:
        policy = policy_of(self.name, self.value)
        return PlannedAutoscaler(policy, cluster, every_s=self.tick_s)
