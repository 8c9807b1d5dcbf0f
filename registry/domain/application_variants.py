"""Which models are variants of an application, and why one cannot be chosen. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from registry.domain.application import ApplicationSpec
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelSpec


def named_variants(
    application: ApplicationSpec, state: ClusterState
) -> list[tuple[ModelSpec, str | None]]:
    """The models of its namespace that name it, by name; each with its problem, None: none."""
    name = application.name
    specs = [
        record.serving
        for model, record in sorted(state.models.items())
        if model.namespace == name.namespace and record.serving.policy.application == name.name
    ]
    return [(spec, _problem(application, spec, state)) for spec in specs]


def _problem(application: ApplicationSpec, spec: ModelSpec, state: ClusterState) -> str | None:
    profile = state.accuracies.get(spec.name)
    if profile is None:
        return "has no accuracy profile"
    if profile.key != spec.key:
        return "its accuracy profile is of another generation"
    if profile.classes != application.classes:
        return "its accuracy profile is of other classes"
    return None
