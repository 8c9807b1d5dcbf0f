"""The plan of one tick: loads and demotions by the loading policy, the number of pods. Pure.

The driver reads the registry's state and carries out the actions: `service/loop.py` live,
`load/simulator/autoscaling.py` in virtual time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autoscaler.planning.announced_arrivals import with_announced
from autoscaler.planning.memory_quotas import within_quotas
from autoscaler.planning.pool_snapshot import Observations, read_pool
from autoscaler.scaling.desired_pods import ScalingParams, ScalingState, scale_pods
from autoscaler.scaling.limits import contradictions
from autoscaler.tick.view_changes import (
    scale_times,
    with_ongoing_loads,
    without_paused_pods,
    without_placed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from autoscaler.planning.policy import Action, LoadingPolicy
    from autoscaler.planning.pool_view import Limits, PoolView
    from autoscaler.tick.forecast_schedule import ForecastSchedule
    from autoscaler.tick.observed_demand import ObservedDemand
    from registry.domain.action_log import ActionRecord
    from registry.domain.cluster import ClusterState
    from registry.domain.demand import ArrivalHint


@dataclass(frozen=True, slots=True)
class TickPlan:
    """The plan of one tick, and the view that it was made from."""

    view: PoolView
    actions: tuple[Action, ...]
    failure: Exception | None = None
    """The error of the loading policy, whose state is reset."""
    loading: str = ""
    """Name of the loading policy."""

    @property
    def contradictions(self) -> dict[str, str]:
        """By key: why a model's limits cannot be met."""
        return contradictions(self.view, self.loading)


class Planner:
    """Plans for one pool, tick by tick. Used by one task only."""

    def __init__(
        self,
        policy: LoadingPolicy[Any],
        observed: ObservedDemand,
        forecasts: ForecastSchedule | None,
        scaling_params: ScalingParams | None = None,
    ) -> None:
        """Without `forecasts`, plans do not use the demand."""
        self.scaling: ScalingState | None = None
        """None: the number of pods is not planned now."""
        self._policy = policy
        self._policy_state: Any = policy.start
        self._observed = observed
        self._forecasts = forecasts
        self._scaling_params = scaling_params or ScalingParams()

    def plan(
        self,
        state: ClusterState,
        now_s: float,
        observations: Observations,
        *,
        limits: Limits | None = None,
        ongoing: Sequence[ActionRecord] = (),
        paused: Collection[str] = (),
        hints: Sequence[ArrivalHint] = (),
        quota_of: Callable[[str], int | None] = lambda _namespace: None,
    ) -> TickPlan:
        """The plan for the pool as it is now, with the arrivals of the observed demand.

        `ongoing`: actions that pods may not report yet; `paused`: pods that refused a request
        recently; `hints`: arrivals that schedulers of workflows announce; `quota_of`: bytes
        that the models of a namespace may take on all devices together.
        """
        observed, demand = self._observed, None
        if self._forecasts is not None:
            models = tuple(str(name) for name in sorted(state.models))
            self._forecasts.update(models, now_s)
            demand = self._forecasts.demand(models)
            if demand is not None:
                demand = with_announced(demand, models, hints, now_s)
        observations = replace(
            observations, arrived=observed.arrived, last_arrival_s=observed.last_arrival_s
        )
        view = read_pool(state, now_s, observations, limits=limits, demand=demand)
        view = with_ongoing_loads(scale_times(view, observed.time_scale), ongoing)
        view = without_paused_pods(view, paused)
        observed.arrived.clear()
        unplaced = without_placed(view, _placed_pods(state))
        actions, failure = self._load_and_demote(unplaced)
        actions = within_quotas(unplaced, actions, quota_of)
        if self.scaling is not None:
            scaling, self.scaling = scale_pods(unplaced, self.scaling, self._scaling_params)
            actions = (*scaling, *actions)
        return TickPlan(view, actions, failure, self._policy.name)

    def _load_and_demote(self, view: PoolView) -> tuple[tuple[Action, ...], Exception | None]:
        try:
            actions, self._policy_state = self._policy.plan(view, self._policy_state)
        except Exception as error:  # an error in a policy must not stop the scaling of pods
            self._policy_state = self._policy.start
            return (), error
        return actions, None


def _placed_pods(state: ClusterState) -> dict[str, str]:
    """The model that each placed pod serves."""
    return {name: pod.placed_model for name, pod in state.pods.items() if pod.placed_model}
