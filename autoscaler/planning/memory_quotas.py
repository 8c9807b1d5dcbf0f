"""Keeps the models of each namespace within its quota of memory, summed over the pool. Pure.

A pod alone knows its own models only, and bounds a namespace to the whole quota. Beyond that the
namespace's least recently used idle copies leave, whichever pod has them; no load may exceed it.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoscaler.planning.policy import Action, ActionReason, Demote, Load
from autoscaler.planning.pool_view import CopyUse, ModelView, PoolView
from registry.domain.model import Tier, name_of_key

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
