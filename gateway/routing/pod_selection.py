"""Small pure choices that routing policies are composed of: filter, rank, pick."""

from __future__ import annotations

from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from registry.domain.model import Tier

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gateway.routing.views import ClusterView, PodView

_NEARNESS: Final = {Tier.DEVICE: 0, Tier.HOST: 1, Tier.DISK: 2, Tier.REMOTE: 3}
_FAR = _NEARNESS[Tier.REMOTE]
_FEW: Final = 32
"""Pods up to which `benchmarks decision` finds it cheaper to rank all for each request."""
_name = attrgetter("name")


def free_pods(cluster: ClusterView) -> list[PodView]:
    """Pods that can be an entry pod now."""
    return [pod for pod in cluster.pods.values() if pod.has_free_slot]


def least_loaded(pods: Sequence[PodView], draw: float) -> PodView:
    """The least loaded pod; equals are chosen among by `draw`, in the order of their names."""
    equals = [pod for pod in pods if not pod.slots_busy and not pod.inferring]
    if not equals:  # none is idle, which nothing is less loaded than
        equals = _equals(pods)
    _sort_by_name(equals)
    return equals[int(draw * len(equals))]


def _sort_by_name(pods: list[PodView]) -> None:
    """Mostly they are in order: pods register in the order of their names."""
    before = ""
    for pod in pods:
        name = pod.name
        if name < before:
            pods.sort(key=_name)
            return
        before = name


def _equals(pods: Sequence[PodView]) -> list[PodView]:
    """Those with the smallest share of slots taken, then the fewest requests in inference."""
    share, inferring = inf, 0
    equals: list[PodView] = []
    for pod in pods:
        pod_share = pod.slots_busy / pod.slots
        if pod_share > share or (pod_share == share and pod.inferring > inferring):
            continue
        if pod_share < share or pod.inferring < inferring:
            share, inferring = pod_share, pod.inferring
            equals = []
        equals.append(pod)
    return equals


def fewest_inferring(pods: Sequence[PodView]) -> PodView | None:
    """Of those with a free slot, the pod with the fewest requests in their inference stage.

    Ties go to the one with the fewest slots taken, then to the first by name. None: no slot is
    free.
    """
    best: PodView | None = None
    for pod in pods:
        if pod.has_free_slot and (best is None or _comes_before(pod, best)):
            best = pod
    return best


def _comes_before(pod: PodView, other: PodView) -> bool:
    if pod.inferring != other.inferring:
        return pod.inferring < other.inferring
    if pod.slots_busy != other.slots_busy:
        return pod.slots_busy < other.slots_busy
    return pod.name < other.name


def most_free_memory(pods: Sequence[PodView], draw: float) -> PodView:
    """The pod whose memory takes the most without an eviction, then as `least_loaded`."""
    most = max([pod.free_bytes for pod in pods])
    return least_loaded([pod for pod in pods if pod.free_bytes == most], draw)


def least_loaded_free(
    cluster: ClusterView, draw: float, but: Collection[str] = ()
) -> PodView | None:
    """The least loaded pod that can be an entry pod now; None: there is none.

    A large pool is kept ranked by the cluster; to rank a few anew is cheaper than that.
    """
    if len(cluster.pods) > _FEW:
        return cluster.least_loaded(draw, but)
    free = _free_but(cluster, but)
    return least_loaded(free, draw) if free else None


def best_cold(
    cluster: ClusterView, key: str, draw: float, but: Collection[str] = ()
) -> PodView | None:
    """Where a cold start is cheapest: the nearest tier, then memory that needs no eviction.

    Emptiest first, since a load that evicts makes the next cold start; then least loaded, then by
    `draw` in the order of names. None: no pod has a free slot, but for those named.
    """
    if nearest := _nearest_free(cluster, key, but):
        return most_free_memory(nearest, draw)
    if len(cluster.pods) > _FEW:
        return cluster.most_free_memory(draw, but)
    free = _free_but(cluster, but)
    return most_free_memory(free, draw) if free else None


def _free_but(cluster: ClusterView, but: Collection[str]) -> list[PodView]:
    free = free_pods(cluster)
    return [pod for pod in free if pod.name not in but] if but else free


def _nearest_free(cluster: ClusterView, key: str, but: Collection[str]) -> list[PodView]:
    """Those with a free slot at whose nearest tier the model is; none where nobody is near it."""
    pods = cluster.pods
    least = _FAR
    nearest: list[PodView] = []
    for name, residency in cluster.holders(key).items():
        nearness = _NEARNESS[residency.tier]
        if nearness > least or nearness == _FAR or name in but:
            continue
        pod = pods.get(name)
        if pod is not None and pod.has_free_slot:
            if nearness < least:
                least, nearest = nearness, []
            nearest.append(pod)
    return nearest
