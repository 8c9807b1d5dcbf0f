"""The plan of one tick: loads and demotions by the loading policy, the number of pods. Pure.

The driver reads the registry's state and carries out the actions: `service/loop.py` live,
`load/simulator/autoscaling.py` in virtual time.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autoscaler.planning.demand_forecast import with_announced
from autoscaler.planning.desired_pods import ScalingParams, ScalingState, contradictions, scale_pods
from autoscaler.planning.memory_quotas import within_quotas
from autoscaler.planning.policy import Action, LoadingPolicy
from autoscaler.planning.pool_snapshot import Observations, read_pool
from autoscaler.planning.pool_view import Limits, ModelView, PoolView
from autoscaler.tick.forecaster import ForecastSchedule
from autoscaler.tick.observed_demand import ObservedDemand
from registry.domain.cluster import ClusterState
from registry.domain.demand import ArrivalHint
from registry.domain.model import Tier
from registry.domain.pod_index import Residency
from registry.domain.records import ActionRecord


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


def with_ongoing_loads(view: PoolView, ongoing: Sequence[ActionRecord]) -> PoolView:
    """The view with loads that were started and that their pods do not report yet."""
    loading: dict[str, list[str]] = {}
    for record in ongoing:
        if record.verb == "load" and record.tier == Tier.DEVICE:
            loading.setdefault(record.subject, []).append(record.pod)
    if not loading:
        return view

    def with_loads(model: ModelView) -> ModelView:
        pods = [
            pod
            for pod in loading.get(str(model.spec.name), ())
            if pod in view.pods and not _is_reported(model, pod)
        ]
        if not pods:
            return model
        added = {pod: Residency(Tier.REMOTE, Tier.REMOTE, view.time_s, 0) for pod in pods}
        return replace(model, holders={**model.holders, **added})

    return replace(view, models=tuple(with_loads(model) for model in view.models))


def _is_reported(model: ModelView, pod: str) -> bool:
    holder = model.holders.get(pod)
    return holder is not None and (holder.is_warm or holder.is_warming)


def without_paused_pods(view: PoolView, paused: Collection[str]) -> PoolView:
    """The view in which pods that refused a request recently accept nothing."""
    found = {
        name: replace(view.pods[name], is_accepting=False) for name in paused if name in view.pods
    }
    return replace(view, pods={**view.pods, **found}) if found else view


def without_placed(view: PoolView, placed: Mapping[str, str]) -> PoolView:
    """The view without placed pods, and without the models that one of them holds.

    `placed`: the model by name of pod. Loading policies neither evict placed copies nor add
    others.
    """
    if not placed:
        return view
    served = {
        placed[pod]
        for model in view.models
        for pod, each in model.holders.items()
        if each.is_warm and placed.get(pod) == str(model.spec.name)
    }
    rows = [row for row, each in enumerate(view.models) if str(each.spec.name) not in served]
    models = tuple(
        replace(
            view.models[row],
            holders={
                pod: each for pod, each in view.models[row].holders.items() if pod not in placed
            },
        )
        for row in rows
    )
    pods = {name: pod for name, pod in view.pods.items() if name not in placed}
    demand = None if view.demand is None else view.demand.take(np.array(rows, dtype=int))
    return replace(view, pods=pods, models=models, demand=demand)


def scale_times(view: PoolView, factor: float) -> PoolView:
    """The view with all times and durations times `factor`, except its demand.

    For replays of compressed traces: at sixty times the pace, loads, inferences and gaps between
    arrivals are sixty times as short. Policies and forecasts have constants for real time, so they
    plan on a clock that is faster by the same factor.
    """
    if factor == 1:
        return view
    models = tuple(_scaled(each, factor) for each in view.models)
    return replace(view, time_s=factor * view.time_s, models=models)


def _scaled(model: ModelView, factor: float) -> ModelView:
    failure, waiting = model.failure, model.waiting
    return replace(
        model,
        infer_s=factor * model.infer_s,
        hold_s=factor * model.hold_s,
        load_s={tier: factor * seconds for tier, seconds in model.load_s.items()},
        holders={
            pod: replace(each, since_s=factor * each.since_s) for pod, each in model.holders.items()
        },
        uses={pod: replace(each, last_s=factor * each.last_s) for pod, each in model.uses.items()},
        last_arrival_s=factor * model.last_arrival_s,
        waiting=replace(waiting, oldest_s=factor * waiting.oldest_s),
        failure=failure and replace(failure, retry_at_s=factor * failure.retry_at_s),
    )
