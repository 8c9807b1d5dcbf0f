"""Small pure choices that routing policies are composed of: filter, rank, pick."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.model import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.policies.views import ClusterView, PodView
    from registry.cluster import Residency

_NEARNESS: Mapping[Tier, int] = {Tier.DEVICE: 0, Tier.HOST: 1, Tier.DISK: 2, Tier.REMOTE: 3}
_FAR = _NEARNESS[Tier.REMOTE]
_DEVICE = Tier.DEVICE


def warm_pods(cluster: ClusterView, key: str) -> list[PodView]:
    """Accepting pods that hold the model on their device."""
    pods = cluster.pods
    return [
        pod
        for name, residency in cluster.holders(key).items()
        if residency.tier is _DEVICE and (pod := pods.get(name)) is not None and pod.is_accepting
    ]


def warming_pods(cluster: ClusterView, key: str) -> list[PodView]:
    """Accepting pods to whose device a load of the model is under way."""
    pods = cluster.pods
    return [
        pod
        for name, residency in cluster.holders(key).items()
        if residency.loading_from is not None
        and (pod := pods.get(name)) is not None
        and pod.is_accepting
    ]


def free_pods(cluster: ClusterView) -> list[PodView]:
    """Pods that can be an entry pod now."""
    return [pod for pod in cluster.pods.values() if pod.has_free_slot]


def with_free_slot(pods: Sequence[PodView]) -> list[PodView]:
    """Those of the pods that can be an entry pod now."""
    return [pod for pod in pods if pod.has_free_slot]


def load_rank(pod: PodView) -> tuple[float, int]:
    """How loaded a pod is: share of slots taken, then requests in their inference stage."""
    return (pod.slots_busy / pod.slots, pod.inferring)


def least_loaded(pods: Sequence[PodView], draw: float) -> PodView:
    """The least loaded pod; equals are chosen among by `draw`, in the order of their names."""
    equals = [pod for pod in pods if not pod.slots_busy and not pod.inferring]
    if not equals:  # none is idle, which nothing is less loaded than
        ranks = [load_rank(pod) for pod in pods]
        lowest = min(ranks)
        equals = [pod for pod, rank in zip(pods, ranks, strict=True) if rank == lowest]
    equals.sort(key=_name)
    return equals[int(draw * len(equals))]


def fewest_inferring(pods: Sequence[PodView]) -> PodView:
    """The pod with the fewest requests in their inference stage; ties to the first by name."""
    if len(pods) == 1:
        return pods[0]
    fewest = min([pod.inferring for pod in pods])
    equals = [pod for pod in pods if pod.inferring == fewest]
    return min(equals, key=_slots_and_name) if len(equals) > 1 else equals[0]


def best_cold(pods: Sequence[PodView], holders: Mapping[str, Residency], draw: float) -> PodView:
    """Where a cold start is cheapest: the nearest tier, then memory that needs no eviction.

    Emptiest first, since a load that evicts makes the next cold start; then least loaded, then by
    `draw` in the order of names.
    """
    nearest = _nearest(pods, holders)
    most = max([pod.free_bytes for pod in nearest])
    emptiest = [pod for pod in nearest if pod.free_bytes == most]
    return least_loaded(emptiest, draw)


def _nearest(pods: Sequence[PodView], holders: Mapping[str, Residency]) -> Sequence[PodView]:
    """The pods at whose nearest tier the model is; all of them where none holds it."""
    if not holders:
        return pods
    held = [
        (_NEARNESS[residency.tier], pod)
        for pod in pods
        if (residency := holders.get(pod.name)) is not None
    ]
    least = min((nearness for nearness, _ in held), default=_FAR)
    return [pod for nearness, pod in held if nearness == least] if least < _FAR else pods


def _slots_and_name(pod: PodView) -> tuple[int, str]:
    return (pod.slots_busy, pod.name)


def _name(pod: PodView) -> str:
    return pod.name
