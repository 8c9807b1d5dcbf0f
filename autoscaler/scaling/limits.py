"""Validation of limits: invalid bounds of a pool, and limits that contradict each other. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.domain.loading_choice import loading_problem
from registry.domain.model import Preload, Tier

if TYPE_CHECKING:
    from autoscaler.planning.pool_view import Limits, ModelView, PoolView


def pool_problems(limits: Limits) -> list[str]:
    """Mistakes in the bounds of a pool, one line each."""
    low, high = limits.min_pods, limits.max_pods
    problems = []
    if low < 0:
        problems.append(f"min-pods must be at least 0, was {low}")
    if high is not None and high < 1:
        problems.append(f"max-pods must be at least 1, was {high}")
    if high is not None and low > high:
        problems.append(f"min-pods must be at most max-pods, was {low} with max-pods {high}")
    return problems


def contradictions(view: PoolView, loading: str = "") -> dict[str, str]:
    """By model key: why the pool cannot meet the model's limits; other models are left out.

    `loading` is the pool's loading policy; empty: it is not compared.
    """
    largest = max((pod.budget_bytes.get(Tier.DEVICE, 0) for pod in view.pods.values()), default=0)
    found = {}
    for model in view.models:
        text = loading_problem(model.spec, model.spec.pool, loading)
        if text := text or _contradiction(model, view.limits.max_pods, largest):
            found[model.key] = text
    return found


def _contradiction(model: ModelView, max_pods: int | None, max_bytes: int) -> str:
    policy = model.spec.policy
    if max_pods is not None and policy.min_copies > max_pods:
        return f"min-copies must be at most the pool's max-pods {max_pods}, was {policy.min_copies}"
    needs_copies = policy.min_copies or policy.preload is Preload.EAGER
    if needs_copies and max_bytes and model.size_bytes > max_bytes:
        return (
            f"a copy of {model.size_bytes} bytes must fit into a pod's memory, "
            f"the largest pod has {max_bytes} bytes"
        )
    return ""
