"""Whether models may be served by a pool with a given loading policy and planner. Pure.

A pool has one of each: they weigh all models against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.domain.model import PlacementName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from registry.domain.model import ModelSpec


def loading_problem(spec: ModelSpec, pool: str, loading: str) -> str:
    """Why the model's annotation does not allow the pool's loading policy; empty: it does.

    An empty `loading` is unknown, and allowed.
    """
    wanted = spec.policy.loading
    if wanted is None or not loading or wanted == loading:
        return ""
    return (
        f"{spec.name}: metadata.annotations[pilotlight.io/loading] must be {loading!r}, the "
        f"loading policy of pool {pool}, was {str(wanted)!r}; remove the annotation, or start the "
        f"pool's autoscaler with --loading {wanted}"
    )


def loading_problems(specs: Iterable[ModelSpec], pool: str, loading: str) -> list[str]:
    return [problem for spec in specs if (problem := loading_problem(spec, pool, loading))]


def placement_problem(spec: ModelSpec, pool: str, placement: str) -> str:
    """Why the model's annotation does not allow the pool's planner; empty: it does.

    An empty `placement` is unknown, and allowed; `off` in the annotation is always allowed.
    """
    wanted = spec.policy.placement
    if wanted in (None, PlacementName.OFF) or not placement or wanted == placement:
        return ""
    return (
        f"{spec.name}: metadata.annotations[pilotlight.io/placement] must be 'off' or "
        f"{placement!r}, the planner of pool {pool}, was {str(wanted)!r}; remove the annotation, "
        f"or start the pool's autoscaler with --placement {wanted}"
    )


def placement_problems(specs: Iterable[ModelSpec], pool: str, placement: str) -> list[str]:
    return [problem for spec in specs if (problem := placement_problem(spec, pool, placement))]
