"""Forecast of the time to the response, for each option of serving a request.

Source: Liu 2025, section 6.5, equations 1-3, with T_CS = load, T_I = infer, T_P = preprocess +
postprocess, T_N = network, n = requests ongoing at the warm pod; extended by tier (T_CS depends
on where the weights are), the remaining time of loads in progress, several slots per pod, queue
position, work that ends while a request is transferred, and requests that share an inference: each
request ahead takes its share of the device, the request itself as long as its batch. All times
are medians of live measurements at pods of the same kind of accelerator; those of other kinds, and
priors, mark the forecast as unmeasured.
"""

from __future__ import annotations

from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, Final

from gateway.routing.decision import LatencyEstimate
from registry.domain.model import Tier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.routing.decision import RequestView, SendTo
    from registry.domain.cluster import ClusterState
    from registry.domain.estimates import Estimate, ModelEstimates, StageTimes
    from registry.domain.pod_state import PodState
    from registry.domain.residency_index import Residency

_MAX_STEPS: Final = 64
"""Requests ahead that are simulated one by one; further ones are estimated by rate."""


def remaining_load(
    residency: Residency | None, pod: PodState, measured: ModelEstimates, now_s: float
) -> Estimate | None:
    """Time until the model is on the pod's device; None if it is there.

    A load past its expected duration is expected to take as long again.
    """
    if residency is not None and residency.is_warm:
        return None
    link = pod.info.link_bytes_per_s
    if residency is None:
        return measured.load_from(Tier.REMOTE, link)
    whole = measured.load_from(residency.loading_from or residency.tier, link)
    if residency.loading_from is None:
        return whole
    elapsed_s = max(0.0, now_s - residency.since_s)
    rest_s = whole.seconds - elapsed_s
    return type(whole)(rest_s if rest_s > 0 else elapsed_s, whole.is_measured)


def run_at(
    pod: PodState, request: RequestView, cluster: ClusterState, now_s: float
) -> LatencyEstimate:
    """Run at one pod with a free slot: cold, warming or warm.

    Liu's eq. 1 without its second term: other requests may end later than this one. Inference waits
    for the device's backlog, which is worked off while the model loads.
    """
    measured = pod.estimates[request.key]
    times = measured.stages
    load = remaining_load(cluster.holders(request.key).get(pod.name), pod, measured, now_s)
    load_s = load.seconds if load else 0.0
    backlog_s = pod.inferring * times.share_s
    return LatencyEstimate(
        max(load_s, backlog_s) + times.hold_s,
        times.is_measured and (load is None or load.is_measured),
    )


def wait_for(
    pods: Sequence[PodState], request: RequestView, cluster: ClusterState, now_s: float
) -> LatencyEstimate:
    """Wait in the gateway's queue until one of these busy pods has a slot, then run there.

    Liu's eq. 2, with n counted over all slots of all pods that hold or load the model: such a slot
    is free after the rest of the load and of one request, and then every T_I + T_P. A stalled queue
    is expected to stall as long again, which makes `auto` prefer other options; where a slot's
    request is past its inference, only a queue stalled for the time of two requests.
    """
    estimates = pods[0].estimates
    measured = estimates[request.key]
    times = measured.stages
    holders = cluster.holders(request.key)
    free_at_s: list[float] = []
    is_measured = times.is_measured
    is_mixed = False
    for pod in pods:
        if pod.estimates is not estimates:
            is_mixed, estimates = True, pod.estimates
            measured = estimates[request.key]
            times = measured.stages
            is_measured = is_measured and times.is_measured
        load = remaining_load(holders.get(pod.name), pod, measured, now_s)
        free_at_s += _slots_free_at_s(pod, times, load.seconds if load else 0.0)
        is_measured = is_measured and (load is None or load.is_measured)
    is_ending = any(pod.inferring < pod.slots for pod in pods)
    hold_s = _mean_hold_s(pods, request.key) if is_mixed else times.hold_s
    wait_s = turn_after(free_at_s, hold_s, request.ahead)
    if request.stalled_s > (2 * hold_s if is_ending else 0.0):
        wait_s = max(wait_s, request.stalled_s)
    return LatencyEstimate(wait_s + hold_s, is_measured)


def _mean_hold_s(pods: Sequence[PodState], key: str) -> float:
    """Slots by the rate at which all of them together serve requests."""
    rates = [pod.slots / pod.estimates[key].stages.hold_s for pod in pods]
    return sum(pod.slots for pod in pods) / sum(rates)


def _slots_free_at_s(pod: PodState, times: StageTimes, load_s: float) -> list[float]:
    """Per slot of a busy pod: when it is free and the device has served all inferences there now.

    A slot whose request is past its inference has only postprocessing left. Requests of other entry
    pods take time of the device, but no slot. Their time counts only if it is measured: a prior
    times their number would exceed any load.
    """
    inferring = min(pod.inferring, pod.slots)
    device_s = load_s + (pod.inferring * times.share_s if times.is_measured else 0.0)
    ending = [max(times.postprocess_s, device_s)] * (pod.slots - inferring)
    return ending + [max(load_s + times.hold_s, device_s)] * inferring


def turn_after(free_at_s: list[float], hold_s: float, ahead: int) -> float:
    """When a slot is free after `ahead` others have each taken the slot that is free first.

    Beyond `_MAX_STEPS` by rate: every slot takes one request per `hold_s`.
    """
    steps = min(ahead, _MAX_STEPS)
    heapify(free_at_s)
    for _ in range(steps):
        heapreplace(free_at_s, free_at_s[0] + hold_s)
    return free_at_s[0] + (ahead - steps) * hold_s / len(free_at_s)


def proxy_to(
    predict: PodState, entry: PodState, request: RequestView, cluster: ClusterState, now_s: float
) -> LatencyEstimate:
    """The entry pod pre- and postprocesses, the predict pod infers (Liu's eq. 3).

    The transfer (the entry pod's first fetch of the tokenizer, the network) and the backlog (the
    rest of a load, other inferences) overlap: the longer of them counts, not their sum.
    """
    measured = predict.estimates[request.key]
    at_entry = entry.estimates[request.key]
    holders = cluster.holders(request.key)
    times, around = measured.stages, at_entry.stages
    network = at_entry.network
    assets = None if entry.name in holders else at_entry.assets
    transfer_s = network.seconds + (assets.seconds if assets else 0.0)
    load = remaining_load(holders.get(predict.name), predict, measured, now_s)
    backlog_s = (load.seconds if load else 0.0) + predict.inferring * times.infer_s
    return LatencyEstimate(
        max(transfer_s, backlog_s) + (times.infer_s + around.preprocess_s + around.postprocess_s),
        times.is_measured
        and around.is_measured
        and network.is_measured
        and (assets is None or assets.is_measured)
        and (load is None or load.is_measured),
    )


def estimate_of(
    decision: SendTo, request: RequestView, cluster: ClusterState, now_s: float
) -> LatencyEstimate:
    if decision.forecast is not None:
        return decision.forecast
    predict = cluster.pods[decision.predict]
    if decision.entry == decision.predict:
        return run_at(predict, request, cluster, now_s)
    return proxy_to(predict, cluster.pods[decision.entry], request, cluster, now_s)
