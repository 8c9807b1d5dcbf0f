"""What two copies of a pool must agree on, in a form that compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelName, ModelRecord
    from registry.domain.profile import Profile
    from registry.domain.residency_index import Residency


@dataclass(frozen=True)
class View:
    pods: dict[str, tuple[object, ...]]
    models: dict[ModelName, ModelRecord]
    residency: dict[str, dict[str, Residency]]
    profiles: dict[ModelName, Profile]


def view(state: ClusterState) -> View:
    """All that a copy says of pods, models, tiers and profiles."""
    pods: dict[str, tuple[object, ...]] = {
        pod.name: (
            pod.info, pod.epoch, pod.phase, pod.slots_used, pod.ongoing, dict(pod.used_bytes),
            pod.loads_total,
        )
        for pod in state.pods.values()
    }  # fmt: skip
    residency = {key: dict(holders) for key, holders in state.residency.items()}
    return View(pods, dict(state.models), residency, dict(state.profiles))
