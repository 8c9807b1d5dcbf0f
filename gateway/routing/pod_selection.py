"""Filters and rankings of pods that routing policies are composed of."""

from collections.abc import Collection, Sequence
from math import inf
from operator import attrgetter
from typing import Final

from gateway.routing.decision import RequestView
from gateway.routing.latency_model import PodForecast, run_at, times_at
from registry.domain.cluster import ClusterState
from registry.domain.device_backlog import device_backlog, is_idle
from registry.domain.estimates import UNMEASURED, KindEstimates
from registry.domain.model import Tier
from registry.domain.pod import AcceleratorKind
from registry.domain.pod_index import FreePods, load_rank, work_rank
from registry.domain.pod_state import ChangeLog, PodState

_DISTANCE: Final = {Tier.DEVICE: 0, Tier.HOST: 1, Tier.DISK: 2, Tier.REMOTE: 3}
_REMOTE: Final = _DISTANCE[Tier.REMOTE]
MAX_SCANNED: Final = 32
"""Pods up to which a scan per request is cheaper than the index (`benchmarks decision`)."""
_name = attrgetter("name")

MAX_COMPARED: Final = 9
_SAME_TIME_S: Final = 1e-6


def free_pods(cluster: ClusterState) -> list[PodState]:
    """Pods that accept another request, of any model: those of a placed model are left out."""
    return [pod for pod in cluster.pods.values() if pod.has_free_slot and not pod.placed_model]


def least_loaded(pods: Sequence[PodState], draw: float) -> PodState:
    """The least loaded pod; ties are broken by `draw`, in the order of names."""
    equals = [pod for pod in pods if not pod.slots_busy and not pod.inferring]
    if not equals:  # no pod is idle
        ranks = [load_rank(pod) for pod in pods]
        lowest = min(ranks)
        equals = [pod for pod, rank in zip(pods, ranks, strict=True) if rank == lowest]
    equals.sort(key=_name)
    return equals[int(draw * len(equals))]


def fewest_inferring(pods: Sequence[PodState]) -> PodState | None:
    """Of pods with a free slot, the one with the fewest requests in the inference stage.

    Ties: fewest slots taken, then by name. None if no slot is free.
    """
    free = [pod for pod in pods if pod.has_free_slot]
    return min(free, key=lambda pod: (*work_rank(pod), pod.name), default=None)


def least_busy_below(
    target_ongoing: int, warm: Sequence[PodState], warming: Sequence[PodState]
) -> PodState | None:
    """The pod with the fewest ongoing requests below the target; ties: warm first, then by name."""
    best = _least_busy(warm, target_ongoing)
    return _least_busy(warming, best.inferring if best else target_ongoing) or best


def _least_busy(pods: Sequence[PodState], below: int) -> PodState | None:
    best: PodState | None = None
    fewest = below
    for pod in pods:
        inferring = pod.inferring
        if inferring < fewest or (inferring == fewest and best and pod.name < best.name):
            best, fewest = pod, inferring
    return best


def most_free_memory(pods: Sequence[PodState], draw: float) -> PodState:
    """The pod with the most memory that needs no eviction; ties as `least_loaded`."""
    max_bytes = max([pod.free_bytes for pod in pods])
    return least_loaded([pod for pod in pods if pod.free_bytes == max_bytes], draw)


def least_loaded_free(
    cluster: ClusterState, draw: float, excluded: Collection[str] = ()
) -> PodState | None:
    """The least loaded pod with a free slot, except those in `excluded`; None if there is none."""
    if len(cluster.pods) > MAX_SCANNED:
        return cluster.pods.by_load.pick(draw, excluded)
    free = [pod for pod in free_pods(cluster) if pod.name not in excluded]
    return least_loaded(free, draw) if free else None


def best_cold(cluster: ClusterState, key: str, draw: float) -> PodState | None:
    """The pod with the cheapest cold start: nearest tier, then most memory without an eviction.

    A load that evicts causes the next cold start. An adapter is loaded where its base is. Ties:
    least loaded, then by `draw` in the order of names. None if no pod has a free slot.
    """
    base = cluster.base_of(key)
    if base and (beside := cluster.free_warm(base).first(MAX_SCANNED)):
        near = [pod for pod in _nearest_free(cluster, key) if pod in beside]
        return most_free_memory(near or beside, draw)
    if nearest := _nearest_free(cluster, key):
        return most_free_memory(nearest, draw)
    if len(cluster.pods) > MAX_SCANNED:
        return cluster.pods.by_free_memory.pick(draw)
    free = free_pods(cluster)
    return most_free_memory(free, draw) if free else None


def cheapest_load(
    cluster: ClusterState,
    key: str,
    draw: float,
    excluded: Collection[str] = (),
    kind: AcceleratorKind | None = None,
    *,
    left_s: float = inf,
    late_s: float = 0.0,
) -> PodState | None:
    """The pod with the least sum of a load's time, the price of what it evicts and of its slot.

    Of a slow pod also what a request takes longer there. Ties: nearest tier, least loaded, then by
    `draw` in the order of names. Only pods with a free slot, and memory that loads in progress
    leave; not those in `excluded`; of `kind`, unless it is None. Prices are those of the last
    `EvictionPrices.refresh`. A load that is known to take longer than `left_s` costs `late_s` more.
    """
    prices, holders, base = cluster.eviction_prices, cluster.holders(key), cluster.base_of(key)
    others_s, size_bytes = prices.load_cost_s, prices.size_bytes(key)
    at_base = cluster.holders(base) if base else {}
    estimates: KindEstimates | None = None
    link, remote = None, UNMEASURED.load_from(Tier.REMOTE, None)
    slower_s = 0.0
    least = (inf, 0)
    cheapest: list[PodState] = []
    for name, pod in cluster.pods.items():
        is_kind = kind is None or pod.kind == kind
        if not (is_kind and pod.has_free_slot) or name in excluded or pod.placed_model:
            continue
        residency = holders.get(name)
        if pod.estimates is not estimates or pod.info.link_bytes_per_s != link:
            estimates, link = pod.estimates, pod.info.link_bytes_per_s
            remote = estimates[key].load_from(Tier.REMOTE, link)
            slower_s = estimates[key].stages.hold_s - estimates.table[key].stages.hold_s
        tier, load = Tier.REMOTE, remote
        if residency is not None and residency.tier is not Tier.REMOTE:
            tier = residency.tier
            load = estimates[key].load_from(tier, link)
        load_s = load.seconds
        if base:
            size_bytes, held = prices.size_bytes(key, pod), at_base.get(name)
            if held is None or not held.is_warm:
                from_tier = held.tier if held else Tier.REMOTE
                load_s += estimates[base].load_from(from_tier, link).seconds
        cost_s = load_s + slower_s + others_s(pod, size_bytes, load_s)
        if load_s > left_s and load.is_measured:
            cost_s += late_s
        cost = (cost_s, _DISTANCE[tier])
        if cost < least:
            least, cheapest = cost, [pod]
        elif cost == least and cost[0] < inf:
            cheapest.append(pod)
    return least_loaded(cheapest, draw) if cheapest else None


def _nearest_free(cluster: ClusterState, key: str) -> list[PodState]:
    """Pods with a free slot that hold the model at the nearest tier; none if it is remote only."""
    pods = cluster.pods
    min_distance = _REMOTE
    nearest: list[PodState] = []
    for name, residency in cluster.holders(key).items():
        distance = _DISTANCE[residency.tier]
        if distance > min_distance or distance == _REMOTE:
            continue
        pod = pods.get(name)
        if pod is not None and pod.has_free_slot and not pod.placed_model:
            if distance < min_distance:
                min_distance, nearest = distance, []
            nearest.append(pod)
    return nearest


def run_soonest(
    pods: Sequence[PodState], request: RequestView, cluster: ClusterState, now_s: float
) -> PodForecast | None:
    """Run at the pod with a free slot that responds first, delays of others there included.

    None if there is no such pod. Of pods that are equally fast one without other inferences comes
    first; of many only those with the fewest are compared, as long as each pod takes for them.
    Where pods have a part of the prompt, the one whose requests all together lose least: it holds
    them up for its device time. Ties: as `FreePods`.
    """
    best = None
    best_s = inf
    free = FreePods(pods, ChangeLog()).first(len(pods))
    are_alike = len({pod.slowness for pod in free}) <= 1
    if not are_alike:
        free.sort(key=lambda pod: (pod.inferring + 1) * pod.slowness)
    if (cached := request.cached) is not None:
        shares_s = {pod: times_at(pod, request).share_s for pod in free}
        free.sort(key=lambda pod: ((pod.inferring + 1) * shares_s[pod], -cached.get(pod.name, 0.0)))
        del free[1:]
    for pod in free[:MAX_COMPARED]:
        forecast = run_at(pod, request, cluster, now_s)
        ends_s = forecast.seconds + forecast.delays_s
        if ends_s < best_s - _SAME_TIME_S:
            best, best_s = forecast, ends_s
            if are_alike and is_idle(pod):
                break
    return best


def soonest_of(
    pods: Sequence[PodState],
    key: str,
    size_class: int | None,
    deadline_s: float | None,
    cluster: ClusterState,
    now_s: float,
) -> PodForecast:
    """As `run_soonest`, of the first `MAX_COMPARED` free pods that hold the model, in their order.

    All are equally fast: they differ in what their devices have to do alone.
    """
    best = pods[0]
    measured = best.estimates[key]
    times = measured.stages_of(size_class)
    ready_s = start_s = times.preprocess_s
    guessed_s = delays_s = 0.0
    if not is_idle(best):
        of_all = measured.stages
        backlog = device_backlog(best, key, deadline_s, cluster, now_s, of_all, ready_s)
        if backlog.overtaken:
            delays_s = backlog.overtaken * times.share_s
        if len(pods) > 1:
            best_s = max(ready_s, backlog.free_s) + delays_s
            for pod in pods[1:]:
                if best_s <= ready_s + _SAME_TIME_S:
                    break
                found = device_backlog(pod, key, deadline_s, cluster, now_s, of_all, ready_s)
                delay_s = found.overtaken * times.share_s
                ends_s = max(ready_s, found.free_s) + delay_s
                if ends_s < best_s - _SAME_TIME_S:
                    best, backlog, delays_s, best_s = pod, found, delay_s, ends_s
        if backlog.free_s > ready_s:
            start_s = backlog.free_s
            guessed_s = min(backlog.guessed_s, start_s - ready_s)
    return PodForecast(
        start_s + (times.infer_s + times.postprocess_s),
        times.is_measured,
        guessed_s + times.spread_s,
        delays_s,
        pod=best,
        times=times,
        start_s=start_s,
    )
