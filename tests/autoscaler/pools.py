"""Small pools for tests of planning and loading policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autoscaler.planning.pool_view import ModelView, PlannedPod, PoolView
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, Tier
from registry.domain.residency_index import Residency

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOW_S = 10_000.0
LOAD_S = {Tier.HOST: 0.1, Tier.DISK: 1.0, Tier.REMOTE: 10.0}


def spec(name: str = "m", **policy: Any) -> ModelSpec:
    """A model of namespace `default`."""
    return ModelSpec(ModelName("default", name), f"file:///{name}", policy=ModelPolicy(**policy))


def model(
    name: str = "m",
    *,
    at: Mapping[str, Tier] | None = None,
    loading: Mapping[str, Tier] | None = None,
    policy: Mapping[str, Any] | None = None,
    since_s: float = 0.0,
    size_bytes: int = 1_000,
    **values: Any,
) -> ModelView:
    """A model `at` tiers of pods, and `loading` on other pods from a tier."""
    holders = {
        pod: Residency(tier, None, since_s, size_bytes) for pod, tier in (at or {}).items()
    } | {pod: Residency(tier, tier, since_s, size_bytes) for pod, tier in (loading or {}).items()}
    values = {"load_s": LOAD_S, "infer_s": 0.1, "hold_s": 0.1, **values}
    return ModelView(spec(name, **(policy or {})), size_bytes, holders=holders, **values)


def pod(
    name: str = "p", *, memory_bytes: int = 10_000, used_bytes: int = 0, **values: Any
) -> PlannedPod:
    """By default on its own node."""
    return PlannedPod(
        name,
        values.pop("node", f"node-of-{name}"),
        budget_bytes={Tier.DEVICE: memory_bytes},
        used_bytes={Tier.DEVICE: used_bytes},
        **values,
    )


def pool(
    pods: Sequence[PlannedPod], models: Sequence[ModelView], *, now_s: float = NOW_S, **values: Any
) -> PoolView:
    return PoolView(now_s, {each.name: each for each in pods}, tuple(models), **values)
