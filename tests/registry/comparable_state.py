"""The parts of a pool's copy that two copies must agree on, as comparable values."""

from dataclasses import dataclass

from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelRecord
from registry.domain.pod import Profile
from registry.domain.pod_index import Residency


@dataclass(frozen=True)
class ComparableState:
    pods: dict[str, tuple[object, ...]]
    models: dict[ModelName, ModelRecord]
    residency: dict[str, dict[str, Residency]]
    profiles: dict[ModelName, dict[str, Profile]]
    queued_steps: dict[str, dict[str, int]]


def comparable(state: ClusterState) -> ComparableState:
    pods: dict[str, tuple[object, ...]] = {
        pod.name: (
            pod.info,
            pod.epoch,
            pod.phase,
            pod.slots_used,
            pod.ongoing,
            dict(pod.used_bytes),
            pod.loads_total,
            pod.speed,
        )
        for pod in state.pods.values()
    }
    residency = {key: dict(holders) for key, holders in state.residency.items()}
    profiles = {name: dict(by_product) for name, by_product in state.profiles.items()}
    steps = {name: dict(queued.counts) for name, queued in state.queued_steps.items()}
    return ComparableState(pods, dict(state.models), residency, profiles, steps)
