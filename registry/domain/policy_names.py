"""The policies that models, applications and pools may name, those of plug-ins included.

A pool has one loading policy and one planner, since they weigh all models against each other; a
model that names another one cannot be served by it.
"""

from collections.abc import Iterable
from typing import Final

from registry.domain.application import SelectionPolicy
from registry.domain.model import LoadingPolicyName, ModelSpec, PlacementName, RoutingPolicy
from registry.plugins import PolicyNames

ROUTING: Final = PolicyNames("pilotlight.routing", RoutingPolicy)
LOADING: Final = PolicyNames("pilotlight.loading", LoadingPolicyName)
PLACEMENT: Final = PolicyNames("pilotlight.placement", PlacementName)
SELECTION: Final = PolicyNames("pilotlight.selection", SelectionPolicy)


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
