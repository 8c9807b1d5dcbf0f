"""Pods and models of the local cluster state as the scheduling policies read them."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import inf
from typing import Final

from registry.domain.cluster import ClusterState
from registry.domain.estimates import TRANSFERS
from registry.domain.model import ModelSpec, Tier
from registry.domain.pod import Profile
from registry.domain.pod_state import PodState
from workflows.plan.costs import (
    Device,
    DeviceQueue,
    Links,
    ModelCosts,
    TransferCosts,
    measured_links,
)

LINKS: Final = Links(
    sent=TransferCosts(0.0, inf),
    shared_memory=TransferCosts(0.0005, 5e9),
    raw_bytes=TransferCosts(0.001, 1e9),
)
"""Before the first measurement; `docs/workflows.md`, Tensors between pods, on one machine. What the
scheduler sends it sends to every pod alike."""
UNKNOWN_OUTPUT_BYTES: Final = 4096.0
UNPROFILED_BATCH: Final = 8
"""Largest batch of a model without a profile, as of a pod's default slots."""
ASSUMED_REQUEST_S: Final = 0.05
"""Device time of a request of an unknown model. Chosen."""


def links(state: ClusterState) -> Links:
    """Costs of transfers, as far as they are measured.

    Over all kinds of accelerators: kept outputs are in host memory.
    """
    return measured_links(LINKS, state.measured(TRANSFERS))


def model_costs(state: ClusterState, spec: ModelSpec, output_bytes: float | None) -> ModelCosts:
    """Measured costs of a model, over all kinds of accelerators; priors without measurements.

    `output_bytes`: what this scheduler has seen; None: nothing, so that what pods say counts.
    """
    profiles = state.profiles_of(spec.key)
    measured = state.measured(spec.key)
    if profiles:
        batch_s, largest = partial(_profiled_s, profiles[0]), profiles[0].best_rows
    else:
        batch_s = partial(_estimated_s, measured.infer.seconds, measured.share.seconds)
        largest = UNPROFILED_BATCH
    return ModelCosts(
        batch_s=batch_s,
        max_batch=spec.policy.max_batch_size or max(largest, 1),
        load_s=measured.load_from(Tier.REMOTE, None).seconds,
        output_bytes=output_bytes or measured.output_bytes or UNKNOWN_OUTPUT_BYTES,
    )


def _estimated_s(infer_s: float, share_s: float, size: int) -> float:
    return infer_s + (size - 1) * share_s


def _profiled_s(profile: Profile, size: int) -> float:
    """Between the profile's points in proportion, beyond the last one by its rate."""
    points = profile.points
    if size >= points[-1].rows:
        return points[-1].latency_s * size / points[-1].rows
    for before, after in pairwise(points):
        if before.rows <= size <= after.rows:
            part = (size - before.rows) / (after.rows - before.rows)
            return before.latency_s + part * (after.latency_s - before.latency_s)
    return points[0].latency_s


def device_of(
    state: ClusterState, pod: PodState, queue: DeviceQueue, models: Sequence[str], now_s: float
) -> Device:
    """A pod, with what loading each of these models there would take, and cost other models."""
    loaded, load_s, harm_s = set(), {}, {}
    for key in models:
        seconds = load_seconds(state, pod, key, now_s)
        if seconds > 0.0:
            load_s[key] = seconds
            harm_s[key] = eviction_seconds(state, pod, key, now_s, seconds)
        else:
            loaded.add(key)
    memory = pod.info.shared_memory or pod.name
    return Device(pod.name, memory, queue.batches, queue.free_s, load_s, loaded, harm_s)


def eviction_seconds(
    state: ClusterState, pod: PodState, key: str, now_s: float, load_s: float
) -> float:
    """What evictions for a load cost later requests; while loads take the memory: a load's time.

    Nothing for a load in progress, which has its memory.
    """
    if not pod.memory_bytes or _is_loading(state, pod, key):
        return 0.0
    price_s = state.prices_at(now_s).price_s(pod, key)
    return price_s if price_s < inf else load_s


def is_worth_loading(
    state: ClusterState, pod: PodState, key: str, now_s: float, load_s: float, probability: float
) -> bool:
    """Whether a load is expected to save a step more time than it costs requests of other models.

    One in progress is: it has evicted others already.
    """
    if _is_loading(state, pod, key):
        return True
    prices = state.prices_at(now_s)
    return probability * load_s > prices.load_cost_s(pod, prices.size_bytes(key), load_s)


def _is_loading(state: ClusterState, pod: PodState, key: str) -> bool:
    residency = state.holders(key).get(pod.name)
    return residency is not None and residency.is_warming


def load_seconds(state: ClusterState, pod: PodState, key: str, now_s: float) -> float:
    """Time until the model is on the pod's device; infinite where it never fits."""
    residency = state.holders(key).get(pod.name)
    if residency is not None and residency.is_warm:
        return 0.0
    if state.residency.device_bytes.get(key, 0) > pod.memory_bytes > 0:
        return inf
    tier = Tier.REMOTE if residency is None else (residency.loading_from or residency.tier)
    seconds = pod.estimates[key].load_from(tier, pod.info.link_bytes_per_s).seconds
    if residency is not None and residency.is_warming:
        seconds = max(seconds - max(0.0, now_s - residency.since_s), 0.05 * seconds)
    return max(seconds, 1e-6)


def requests_seconds(pod: PodState, steps: int) -> float:
    """Work on the device that is no step: the registry knows how many requests that is."""
    return max(0, pod.inferring - steps) * ASSUMED_REQUEST_S


def holders_by_model(
    state: ClusterState, pods: Mapping[str, int], models: Sequence[str]
) -> dict[str, list[int]]:
    """By model, positions of the pods that hold it on their device or load it."""
    return {
        key: sorted(
            pods[name]
            for name, residency in state.holders(key).items()
            if name in pods and (residency.is_warm or residency.is_warming)
        )
        for key in models
    }
