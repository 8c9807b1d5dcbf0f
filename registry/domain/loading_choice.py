"""Whether models may be served by a pool with a given loading policy. Pure.

A pool has one loading policy: it weighs all models against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
