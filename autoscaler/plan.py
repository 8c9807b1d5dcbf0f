"""Third step of a tick: loads and demotions by a loading policy, in quotas, and pods. Pure."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

import numpy as np

from autoscaler.desired_pods import ScalingParams, ScalingState, contradictions, scale_pods
from autoscaler.forecasting.forecasts import arrivals_per_s, mean_per_s, quantiles_per_s
from autoscaler.policy import (
    Action,
    ActionReason,
    CopyUse,
    Demote,
    Load,
    LoadingPolicy,
    ModelView,
    PoolView,
)
from registry.domain.demand import Band, ExpectedRates
from registry.domain.model import Tier, name_of_key

QuotaOf = Callable[[str], int | None]


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
        self, policy: LoadingPolicy[Any], scaling_params: ScalingParams | None = None
    ) -> None:
        self.scaling: ScalingState | None = None
        """None: the number of pods is not planned now."""
        self._policy = policy
        self._policy_state: Any = policy.start
        self._scaling_params = scaling_params or ScalingParams()

    def plan(self, view: PoolView, *, quota_of: QuotaOf = lambda _namespace: None) -> TickPlan:
        """`quota_of`: bytes that the models of a namespace may take on all devices together."""
        planned = without_placed(view)
        actions, failure = self._load_and_demote(planned)
        actions = within_quotas(planned, actions, quota_of)
        if self.scaling is not None:
            scaling, self.scaling = scale_pods(planned, self.scaling, self._scaling_params)
            actions = (*scaling, *actions)
        return TickPlan(view, actions, failure, self._policy.name)

    def _load_and_demote(self, view: PoolView) -> tuple[tuple[Action, ...], Exception | None]:
        try:
            actions, self._policy_state = self._policy.plan(view, self._policy_state)
        except Exception as error:  # an error in a policy must not stop the scaling of pods
            self._policy_state = self._policy.start
            return (), error
        return actions, None


def without_placed(view: PoolView) -> PoolView:
    """The view without placed pods, and without the models that one of them holds.

    Loading policies neither evict placed copies nor add others.
    """
    placed = {name: pod.placed_model for name, pod in view.pods.items() if pod.placed_model}
    if not placed:
        return view
    served = {
        placed[pod]
        for model in view.models
        for pod, each in model.holders.items()
        if each.is_warm and placed.get(pod) == str(model.spec.name)
    }
    rows = [row for row, name in enumerate(view.names) if name not in served]
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

    A pod alone knows its own models only, and bounds a namespace to the whole quota. Beyond that
    the namespace's least recently used idle copies leave, whichever pod has them. `quota_of`: bytes
    by namespace; None: any.
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
