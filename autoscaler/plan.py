"""The plan of one tick: loads and demotions by the loading policy, the number of pods. Pure.

The driver reads the registry's state and carries out the actions: `service/loop.py` live,
`load/simulator/autoscaling.py` in virtual time.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

import numpy as np

from autoscaler.forecast import ForecastSchedule
from autoscaler.forecasting.counts import ObservedDemand
from autoscaler.forecasting.demand import (
    arrivals_per_s,
    mean_per_s,
    quantiles_per_s,
    with_announced,
)
from autoscaler.planning.desired_pods import ScalingParams, ScalingState, contradictions, scale_pods
from autoscaler.planning.policy import Action, ActionReason, Demote, Load, LoadingPolicy
from autoscaler.planning.pool_view import (
    CopyUse,
    Limits,
    ModelView,
    Observations,
    PoolView,
    read_pool,
)
from registry.domain.cluster import ClusterState
from registry.domain.demand import ArrivalHint, Band, ExpectedRates
from registry.domain.model import Tier, name_of_key
from registry.domain.pod_index import Residency
from registry.domain.records import ActionRecord

# Keeps the models of each namespace within its quota of memory, summed over the pool. Pure.
#
# A pod alone knows its own models only, and bounds a namespace to the whole quota. Beyond that the
# namespace's least recently used idle copies leave, whichever pod has them; no load may exceed it.


QuotaOf = Callable[[str], int | None]


@dataclass(frozen=True, slots=True)
class _Copy:
    """On a pod's device, or on its way there."""

    key: str
    pod: str
    size_bytes: int
    may_leave: bool
    is_needed: bool
    """For `min-copies`."""
    last_s: float

    @property
    def order(self) -> tuple[bool, float, str, str]:
        return self.is_needed, self.last_s, self.key, self.pod


def within_quotas(
    view: PoolView, actions: Sequence[Action], quota_of: QuotaOf
) -> tuple[Action, ...]:
    """The plan without loads beyond a quota, and with demotions where one is exceeded.

    `quota_of`: bytes by namespace; None: any.
    """
    quotas = {
        namespace: limit
        for namespace in {model.spec.name.namespace for model in view.models}
        if (limit := quota_of(namespace)) is not None
    }
    if not quotas:
        return tuple(actions)
    sizes = {model.key: model.size_bytes for model in view.models}
    copies: dict[str, list[_Copy]] = defaultdict(list)
    for model in view.models:
        if (namespace := model.spec.name.namespace) in quotas:
            copies[namespace] += _copies(model, view)
    leaving = {(each.key, each.pod) for each in actions if isinstance(each, Demote)}
    demotions: list[Demote] = []
    left = {}
    for namespace, limit in quotas.items():
        staying = [each for each in copies[namespace] if (each.key, each.pod) not in leaving]
        found, left[namespace] = _demotions(staying, limit)
        demotions += found
    present = {(each.key, each.pod) for found in copies.values() for each in found}
    present -= leaving | {(each.key, each.pod) for each in demotions}
    return (*demotions, *_affordable(actions, left, sizes, present))


def _copies(model: ModelView, view: PoolView) -> list[_Copy]:
    is_needed = model.copies <= model.spec.policy.min_copies
    found = []
    for pod, holder in model.holders.items():
        if pod not in view.pods or not (holder.is_warm or holder.is_warming):
            continue
        use = model.uses.get(pod) or CopyUse(last_s=model.last_arrival_s)
        may_leave = holder.is_warm and not use.ongoing and not model.spec.policy.pin
        size_bytes = holder.size_bytes if holder.is_warm else model.size_bytes
        last_s = max(holder.since_s, use.last_s)
        found.append(_Copy(model.key, pod, size_bytes, may_leave, is_needed, last_s))
    return found


def _demotions(copies: Sequence[_Copy], limit: int) -> tuple[list[Demote], int]:
    """Demotions of one namespace until it is within its quota, and the bytes left of it."""
    left = limit - sum(each.size_bytes for each in copies)
    found: list[Demote] = []
    for copy in sorted((each for each in copies if each.may_leave), key=lambda each: each.order):
        if left >= 0:
            break
        detail = f"its namespace uses {limit - left} bytes of the pool's devices, may use {limit}"
        found.append(Demote(copy.key, copy.pod, Tier.DISK, ActionReason.QUOTA, detail))
        left += copy.size_bytes
    return found, left


def _affordable(
    actions: Sequence[Action],
    left: dict[str, int],
    sizes: dict[str, int],
    present: set[tuple[str, str]],
) -> list[Action]:
    """The actions without the loads for which nothing is left; the first ones get it."""
    kept: list[Action] = []
    for action in actions:
        namespace = name_of_key(action.key).namespace if isinstance(action, Load) else ""
        is_new = isinstance(action, Load) and (action.key, action.pod) not in present
        if isinstance(action, Load) and is_new and action.tier is Tier.DEVICE and namespace in left:
            size_bytes = sizes.get(action.key, 0)
            if size_bytes > left[namespace]:
                continue
            left[namespace] -= size_bytes
        kept.append(action)
    return kept


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


PUBLISH_INTERVAL_S: Final = 5.0
MIN_PER_S: Final = 1e-5
"""Models below this rate are left out: two arrivals a day."""


class RatePublication:
    """When the rates of one pool were published last. Used by one task only."""

    def __init__(self) -> None:
        self._published_s = -inf

    def next_rates(
        self, view: PoolView, now_s: float, *, time_scale: float = 1.0
    ) -> ExpectedRates | None:
        """The rates to publish now; None if none are due or there is no forecast.

        The forecast's clock is `time_scale` times as fast as that of `now_s`.
        """
        if view.demand is None or 0 <= now_s - self._published_s < PUBLISH_INTERVAL_S:
            return None
        self._published_s = now_s
        rates = (arrivals_per_s(view.demand) * time_scale).tolist()
        per_s = {
            model.key: rate
            for model, rate in zip(view.models, rates, strict=True)
            if rate >= MIN_PER_S
        }
        band = (
            mean_per_s(view.demand),
            quantiles_per_s(view.demand, 0.5),
            quantiles_per_s(view.demand, 0.99),
        )
        scaled = (np.stack(band, axis=1) * time_scale).tolist()
        bands = {
            model.key: Band(*scaled[row])
            for row, model in enumerate(view.models)
            if model.key in per_s
        }
        return ExpectedRates(per_s, now_s, bands)
