"""From the registry's copy of a pool to the view that policies plan by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from autoscaler.planning.pool_view import (
    NEVER_S,
    CopyUse,
    Limits,
    ModelView,
    PlannedPod,
    PoolView,
    QueueDemand,
)
from registry.domain.estimates import PRIORS
from registry.domain.model import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.planning.pool_view import Demand
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelName, ModelRecord
    from registry.domain.pod_state import PodState

_SOURCES: Final = (Tier.HOST, Tier.DISK, Tier.REMOTE)


@dataclass(frozen=True, slots=True)
class Observations:
    """What the registry's copy does not hold, by model; all of it may be absent."""

    arrived: Mapping[ModelName, int] = field(default_factory=dict)
    """Requests since the last plan."""
    last_arrival_s: Mapping[ModelName, float] = field(default_factory=dict)
    waiting: Mapping[ModelName, QueueDemand] = field(default_factory=dict)
    uses: Mapping[str, Mapping[str, CopyUse]] = field(default_factory=dict)
    """By key, then pod."""
    size_bytes: Mapping[str, int] = field(default_factory=dict)
    """By key, where it is known before any load."""
    budget_bytes: Mapping[str, Mapping[Tier, int]] = field(default_factory=dict)
    """By pod: budgets of tiers beside the device's, which pods tell themselves."""


def read_pool(
    state: ClusterState,
    now_s: float,
    seen: Observations,
    *,
    limits: Limits | None = None,
    demand: Demand | None = None,
) -> PoolView:
    """The pool now. Models come by name: the rows of `demand` must be in that order.

    The view shares the copy's tables of residency, so use it up before the copy changes.
    """
    pods = {name: _pod(pod, seen) for name, pod in sorted(state.pods.items())}
    link = min(
        (each.info.link_bytes_per_s for each in state.pods.values() if each.info.link_bytes_per_s),
        default=None,
    )
    models = tuple(
        _model(state, name, record, seen, link) for name, record in sorted(state.models.items())
    )
    return PoolView(now_s, pods, models, demand, limits or Limits())


def _pod(pod: PodState, seen: Observations) -> PlannedPod:
    return PlannedPod(
        name=pod.name,
        node=pod.node,
        phase=pod.phase,
        is_accepting=pod.is_accepting,
        slots=pod.slots,
        slots_busy=pod.slots_busy,
        inferring=pod.inferring,
        budget_bytes={**seen.budget_bytes.get(pod.name, {}), Tier.DEVICE: pod.memory_bytes},
        used_bytes={tier: pod.used_bytes.get(tier, 0) for tier in (Tier.DEVICE, *_SOURCES[:2])},
    )


def _model(
    state: ClusterState,
    name: ModelName,
    record: ModelRecord,
    seen: Observations,
    link: float | None,
) -> ModelView:
    spec = record.serving
    holders, measured = state.holders(spec.key), state.measured(spec.key)
    stages = measured.stages
    size_bytes = seen.size_bytes.get(spec.key) or max(
        (each.size_bytes for each in holders.values() if each.tier is not Tier.REMOTE), default=0
    )
    return ModelView(
        spec=spec,
        size_bytes=size_bytes or int(PRIORS.load_bytes),
        infer_s=stages.share_s,
        hold_s=stages.hold_s,
        load_s={tier: measured.load_from(tier, link).seconds for tier in _SOURCES},
        holders=holders,
        uses=seen.uses.get(spec.key, {}),
        arrived=seen.arrived.get(name, 0),
        last_arrival_s=seen.last_arrival_s.get(name, NEVER_S),
        waiting=seen.waiting.get(name, QueueDemand()),
        failure=record.failure,
    )
