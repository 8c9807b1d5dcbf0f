"""What production's cluster state would say of simulated devices: the price of evictions there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from load.experiments.workflows.constants import MODELS, load_seconds
from registry.domain.cluster import ClusterState
from registry.domain.model import Tier
from registry.domain.pod import PodInfo
from registry.domain.pod_state import PodState

if TYPE_CHECKING:
    from collections.abc import Iterable


def cluster_state(
    names: Iterable[str], memory_bytes: float, host_bytes_per_s: float
) -> ClusterState:
    """Empty pods. Sizes and times of all models are known, as after earlier loads and requests."""
    state = ClusterState()
    for name in names:
        state.pods[name] = PodState(PodInfo(name, "", "", memory_bytes=int(memory_bytes)))
    estimates = next(iter(state.pods.values())).estimates  # pods of one kind share them
    for model, figures in MODELS.items():
        state.residency.device_bytes[model] = int(figures.size_bytes)
        estimates.add(model, f"load:{Tier.HOST}", [load_seconds(model, host_bytes_per_s)])
        for measure in ("infer", "share"):
            estimates.add(model, measure, [figures.first_s])
    return state
