"""Forecast of the time to the response, for each option of serving a request.

Source: Liu 2025, section 6.5, equations 1-3, with T_CS = load, T_I = infer, T_P = preprocess +
postprocess, T_N = network, n = requests ongoing at the warm pod; extended by tier (T_CS depends
on where the weights are), the remaining time of loads in progress, several slots per pod, queue
position, work that ends while a request is transferred or its inputs are prepared, and requests
that share an inference: each request ahead takes its own model's share of the device, less what has
passed (`registry.domain.pod_state`), the request itself as long as its batch. All times are medians
of live measurements at pods of the same kind of accelerator; those of other kinds, and priors, mark
the forecast as unmeasured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heapreplace
from typing import Final

from gateway.routing.decision import LatencyEstimate, Reason, RequestView, SendTo
from registry.domain.cluster import ClusterState
from registry.domain.device_backlog import (
    RemainingLoad,
    device_backlog,
    has_warm_model,
    is_idle,
    mean_times,
    remaining_load,
)
from registry.domain.device_work import ASSUMED_DUE_S
from registry.domain.estimates import Estimate, StageTimes
from registry.domain.pod_state import LoadMode, PlacedRequest, PodState

_MAX_STEPS: Final = 64
"""Requests ahead that are simulated one by one; further ones are estimated by rate."""


_LOADED: Final = RemainingLoad(0.0, is_measured=True)


@dataclass(slots=True, kw_only=True)
class PodForecast(LatencyEstimate):
    """Run at one pod with a free slot, after the work of its device."""

    pod: PodState = field(compare=False)
    times: StageTimes
    start_s: float
    """From now: when the inference is expected to begin."""


def run_at(pod: PodState, request: RequestView, cluster: ClusterState, now_s: float) -> PodForecast:
    """Run at one pod with a free slot: cold, warming or warm.

    Liu's eq. 1 without its second term: other requests may end later than this one. Inference waits
    for the device's backlog, which is worked off while the model loads and inputs are prepared.
    """
    measured = pod.estimates[request.key]
    times = measured.stages_of(request.size_class)
    if request.cached is not None:
        times = times_at(pod, request)
    residency = cluster.holders(request.key).get(pod.name)
    load = remaining_load(request.key, pod, measured, cluster, now_s)
    load_s = load.seconds if load else 0.0
    is_measured = times.is_measured and (load is None or load.is_measured)
    ready_s = load_s + times.preprocess_s
    start_s, guessed_s, delays_s = ready_s, load.guessed_s if load else 0.0, 0.0
    if not is_idle(pod):
        wait_s = load_s if residency is not None and residency.is_warming else 0.0
        backlog = device_backlog(
            pod, request.key, request.deadline_s, cluster, now_s, measured.stages, ready_s, wait_s
        )
        delays_s = backlog.overtaken * times.share_s
        if backlog.free_s > ready_s:
            start_s = backlog.free_s
            guessed_s += min(backlog.guessed_s, start_s - ready_s)
    return PodForecast(
        start_s + (times.infer_s + times.postprocess_s),
        is_measured,
        guessed_s + times.spread_s,
        delays_s,
        pod=pod,
        times=times,
        start_s=start_s,
    )


def times_at(pod: PodState, request: RequestView) -> StageTimes:
    """A request's times less that of the part of its prompt that the pod has.

    A prompt takes what requests of its size take longer than those without one.
    """
    measured = pod.estimates[request.key]
    times = measured.stages_of(request.size_class)
    least = measured.stages_of(request.promptless_class)
    share = request.cached.get(pod.name, 0.0) if request.cached else 0.0
    return replace(
        times,
        infer_s=times.infer_s - share * max(0.0, times.infer_s - least.infer_s),
        share_s=times.share_s - share * max(0.0, times.share_s - least.share_s),
    )


def wait_for(
    pods: Sequence[PodState], request: RequestView, cluster: ClusterState, now_s: float
) -> LatencyEstimate:
    """Wait in the gateway's queue until one of these busy pods has a slot, then run there.

    Liu's eq. 2, with n counted over all slots of all pods that hold or load the model: such a slot
    is free when the request that holds it ends, and then every T_I + T_P, as far as the devices
    keep up. A stalled queue is expected to stall as long again, which makes `auto` prefer other
    options; where a slot's request is past its inference, only a queue stalled for the time of two
    requests.
    """
    estimates = pods[0].estimates
    measured = estimates[request.key]
    times = measured.stages
    own = measured.stages_of(request.size_class)
    free = _FreeTimes([], [], [])
    is_measured = times.is_measured
    is_mixed = False
    for pod in pods:
        if pod.estimates is not estimates:
            is_mixed, estimates = True, pod.estimates
            measured = estimates[request.key]
            times = measured.stages
            own = measured.stages_of(request.size_class)
            is_measured = is_measured and times.is_measured
        load = remaining_load(request.key, pod, measured, cluster, now_s) or _LOADED
        _add_slots(free, pod, request, times, cluster, now_s, load)
        is_measured = is_measured and load.is_measured
    hold_s = _mean_hold_s(pods, request.key) if is_mixed else times.hold_s
    known_s = wait_s = turn_after(free.slots_s, hold_s, request.ahead)
    if request.deadline_s is not None:
        known_s = min(wait_s, turn_after(free.known_s, hold_s, request.ahead))
    if request.ahead and times.is_measured:
        wait_s = max(wait_s, turn_after(free.devices_s, times.share_s, request.ahead))
    is_ending = any(pod.inferring < pod.slots for pod in pods)
    if request.stalled_s > (2 * hold_s if is_ending else 0.0):
        wait_s = max(wait_s, request.stalled_s)
    if not is_mixed:
        hold_s = own.hold_s
    return LatencyEstimate(wait_s + hold_s, is_measured, wait_s - known_s + own.spread_s)


@dataclass(slots=True)
class _FreeTimes:
    """When busy pods can take another request, in seconds from now."""

    slots_s: list[float]
    """By slot: when it is free and the device has served all inferences there now."""
    known_s: list[float]
    """The same without what is only guessed."""
    devices_s: list[float]
    """By pod: when its device has served all inferences there now."""


def _add_slots(
    free: _FreeTimes,
    pod: PodState,
    request: RequestView,
    times: StageTimes,
    cluster: ClusterState,
    now_s: float,
    load: RemainingLoad,
) -> None:
    """Add the slots of a busy pod.

    Requests that this process has placed end by their own model's times, all others after the mean
    time at the pod; one that is past its inference has only postprocessing left. Requests of other
    entry pods take time of the device, but no slot. Their time counts only if it is measured: a
    prior times their number would exceed any load.
    """
    work, inferring, load_s = pod.work, pod.inferring, load.seconds
    placed = len(work.inferences)
    slots_s = work.slots_left_s(
        request.key, taken=pod.slots, ended=placed - inferring, load_s=load_s, now_s=now_s
    )
    holders = work.holders
    are_measured = [each.is_measured for each in holders[len(holders) - len(slots_s) :]]
    known_s = [
        left_s if is_measured else 0.0
        for left_s, is_measured in zip(slots_s, are_measured, strict=True)
    ]
    others = pod.slots - len(slots_s)
    if others > 0:
        mean = mean_times(pod, times, cluster, now_s)
        ahead_s = 0.0 if load_s == 0.0 or has_warm_model(pod, cluster) else load_s
        others_inferring = min(others, max(0, inferring - placed))
        slots_s += [mean.after_s] * (others - others_inferring)
        slots_s += [ahead_s + mean.hold_s] * others_inferring
        known_s += [0.0] * others
    device_s = load_s
    if load_s > 0.0:
        slots_s = [max(each, load_s) for each in slots_s]
        known_s = [max(each, load_s) for each in known_s]
    if times.is_measured and not is_idle(pod):
        backlog = device_backlog(
            pod,
            request.key,
            request.deadline_s,
            cluster,
            now_s,
            times,
            load_s + times.preprocess_s,
            load_s,
        )
        device_s = max(load_s, backlog.free_s)
        early_s = backlog.free_s - times.preprocess_s
        slots_s = [max(each, early_s) for each in slots_s]
        known_s = [max(each, early_s - backlog.guessed_s) for each in known_s]
    if load.guessed_s > 0.0:
        known_s = [each - load.guessed_s for each in known_s]
    free.devices_s.append(device_s)
    free.slots_s += slots_s
    free.known_s += known_s


def _mean_hold_s(pods: Sequence[PodState], key: str) -> float:
    """Slots by the rate at which all of them together serve requests."""
    rate = sum([pod.slots / pod.estimates[key].stages.hold_s for pod in pods], 0.0)
    return sum([pod.slots for pod in pods]) / rate


def turn_after(free_at_s: list[float], hold_s: float, ahead: int) -> float:
    """When a slot is free after `ahead` others have each taken the slot that is free first.

    Beyond `_MAX_STEPS` by rate: every slot takes one request per `hold_s`.
    """
    steps = min(ahead, _MAX_STEPS)
    heapify(free_at_s)
    for _ in range(steps):
        heapreplace(free_at_s, free_at_s[0] + hold_s)
    return free_at_s[0] + (ahead - steps) * hold_s / len(free_at_s)


def transfer_time(entry: PodState, key: str, cluster: ClusterState) -> Estimate:
    """From an entry pod to another predict pod, with the first fetch of the model's tokenizer."""
    network = entry.estimates.proxying(key, "network")
    if entry.name in cluster.holders(key):
        return network
    assets = entry.estimates.proxying(key, "assets")
    return Estimate(network.seconds + assets.seconds, network.is_measured and assets.is_measured)


def proxy_to(
    predict: PodState, entry: PodState, request: RequestView, cluster: ClusterState, now_s: float
) -> LatencyEstimate:
    """The entry pod pre- and postprocesses, the predict pod infers (Liu's eq. 3).

    The way to the predict pod (the entry pod's first fetch of the tokenizer, preprocessing, the
    network) and the backlog there (the rest of a load, other inferences) overlap: the longer of
    them counts, not their sum.
    """
    measured = predict.estimates[request.key]
    times = measured.stages_of(request.size_class)
    around = entry.estimates[request.key].stages
    transfer = transfer_time(entry, request.key, cluster)
    load = remaining_load(request.key, predict, measured, cluster, now_s) or _LOADED
    load_s = load.seconds
    ready_s = max(transfer.seconds + around.preprocess_s, load_s)
    backlog = device_backlog(
        predict, request.key, request.deadline_s, cluster, now_s, measured.stages, ready_s, load_s
    )
    start_s = max(ready_s, backlog.free_s)
    known_s = max(ready_s, backlog.free_s - backlog.guessed_s)
    return LatencyEstimate(
        start_s + (times.infer_s + around.postprocess_s),
        times.is_measured and around.is_measured and transfer.is_measured and load.is_measured,
        start_s - known_s + times.spread_s + load.guessed_s,
        backlog.overtaken * times.share_s,
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


def record_placed(
    decision: SendTo,
    key: str,
    deadline_s: float | None,
    cluster: ClusterState,
    now_s: float,
    size_class: int | None = None,
) -> PlacedRequest | None:
    """What later decisions expect the request to take at its pods; its owner ends it.

    Made before the reservation, so that a request on its way counts in full. None: a pod is gone.
    """
    forecast, predict = decision.forecast, cluster.pods.get(decision.predict)
    if predict is None or decision.entry not in cluster.pods:
        return None
    if decision.on_sent is not None:
        decision.on_sent(cluster, now_s)
    if decision.mode is LoadMode.WARM and isinstance(forecast, PodForecast):
        return record_at(forecast, key, deadline_s, now_s)  # made just before
    entry = cluster.pods[decision.entry]
    measured = predict.estimates[key]
    times = around = measured.stages_of(size_class)
    load_s = 0.0
    if decision.mode is not LoadMode.WARM:
        load = remaining_load(key, predict, measured, cluster, now_s)
        load_s = load.seconds if load else 0.0
    if entry is predict:
        ready_s = load_s + times.preprocess_s
    else:
        around = entry.estimates[key].stages
        transfer_s = transfer_time(entry, key, cluster).seconds
        ready_s = max(load_s, transfer_s + around.preprocess_s)
    start_s = ready_s
    if forecast is not None:  # made just before, for these pods
        start_s = max(ready_s, forecast.seconds - times.infer_s - around.postprocess_s)
    # Replicas in turn are chosen without regard to their queues, which may be long.
    elif predict.inferring and decision.reason is not Reason.BATCH_TURN:
        backlog = device_backlog(
            predict, key, deadline_s, cluster, now_s, measured.stages, ready_s, load_s
        )
        start_s = max(start_s, backlog.free_s)
    placed = PlacedRequest(
        key,
        now_s,
        now_s + ready_s + ASSUMED_DUE_S if deadline_s is None else deadline_s,
        now_s + ready_s,
        now_s + start_s,
        times.share_s,
        times.infer_s,
        times.is_measured,
        around.postprocess_s,
        entry.work,
        predict.work,
    )
    if entry is not predict:
        entry.work.proxied[placed] = None
    predict.work.add(
        placed, replace(times, preprocess_s=ready_s - load_s, postprocess_s=around.postprocess_s)
    )
    return placed


def record_at(
    forecast: PodForecast, key: str, deadline_s: float | None, now_s: float
) -> PlacedRequest:
    """As `record_placed`, of a request that runs at a pod that has its model."""
    work, times = forecast.pod.work, forecast.times
    ready_s = now_s + times.preprocess_s
    placed = PlacedRequest(
        key,
        now_s,
        ready_s + ASSUMED_DUE_S if deadline_s is None else deadline_s,
        ready_s,
        now_s + forecast.start_s,
        times.share_s,
        times.infer_s,
        times.is_measured,
        times.postprocess_s,
        work,
        work,
    )
    work.add(placed, times)
    return placed
