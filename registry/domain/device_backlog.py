"""What delays an inference at a pod: its device's work before it, and the load of its model."""

from dataclasses import dataclass
from itertools import islice
from typing import Final

from registry.domain.cluster import ClusterState
from registry.domain.device_work import ASSUMED_DUE_S, Backlog
from registry.domain.estimates import ModelEstimates, StageTimes
from registry.domain.model import Tier
from registry.domain.pod_state import MeanTimes, PodState

_MAX_MODELS: Final = 16
"""Models of a pod that a mean is taken over, where this process has placed no request yet."""
_MIN_RATE_PER_S: Final = 1e-3
"""So that models that this process has had no request for count as well."""


@dataclass(slots=True)
class RemainingLoad:
    """Time until a model is on a device."""

    seconds: float
    is_measured: bool
    guessed_s: float = 0.0
    """The part that is not known: a late load may end now."""


def is_idle(pod: PodState) -> bool:
    """Whether the pod's device has nothing to do."""
    return not pod.inferring and pod.work.cancelled is None


def device_backlog(
    pod: PodState,
    key: str,
    deadline_s: float | None,
    cluster: ClusterState,
    now_s: float,
    times: StageTimes,
    ready_s: float,
    load_s: float = 0.0,
) -> Backlog:
    """Work of the pod's device before an inference of these times that is ready in `ready_s`.

    Requests that this process has placed take their own model's time, all others the pod's mean;
    at a pod that loads its only model, for `load_s` more, those wait for that load as well.
    """
    work, inferring = pod.work, pod.inferring
    placed = len(work.inferences)
    if placed or work.cancelled is not None:
        backlog = work.backlog(
            key,
            now_s + ready_s + ASSUMED_DUE_S if deadline_s is None else deadline_s,
            ready_s,
            inferring,
            times,
            now_s,
        )
    else:
        backlog = Backlog(0.0, 0.0, 0)
    if inferring > placed:
        others_s = (inferring - placed) * mean_times(pod, times, cluster, now_s).share_s
        if load_s > backlog.free_s and not has_warm_model(pod, cluster):
            backlog.free_s = load_s
        backlog.free_s += others_s
        backlog.guessed_s += others_s
    return backlog


def has_warm_model(pod: PodState, cluster: ClusterState) -> bool:
    on_device = cluster.residency.on_device(pod.name)
    return any(residency.is_warm for residency in on_device.values())


def mean_times(pod: PodState, times: StageTimes, cluster: ClusterState, now_s: float) -> MeanTimes:
    """What another process's request takes at a pod: by own requests, else by the models there.

    Models count by their rates. Without measurements, all are as the request in question.
    """
    mean = pod.work.mean_of_others(now_s)
    if mean is None:
        rate_per_s = cluster.arrivals.rate_per_s
        on_device = islice(cluster.residency.on_device(pod.name), _MAX_MODELS)
        found = [
            (each, rate_per_s(key, now_s) + _MIN_RATE_PER_S)
            for key in on_device
            if (each := pod.estimates[key].stages).is_measured
        ]
        if not found:
            return MeanTimes(times.share_s, times.hold_s, times.postprocess_s)
        total = sum([rate for _, rate in found])
        mean = MeanTimes(
            sum([each.share_s * rate for each, rate in found]) / total,
            sum([each.hold_s * rate for each, rate in found]) / total,
            sum([each.postprocess_s * rate for each, rate in found]) / total,
        )
        pod.work.assumed, pod.work.assumed_at_s = mean, now_s
    return mean


def remaining_load(
    key: str, pod: PodState, measured: ModelEstimates, cluster: ClusterState, now_s: float
) -> RemainingLoad | None:
    """Time until the model is on the pod's device; None if it is there.

    Of an adapter with the time until its base is, after which its own load begins. A new load
    shares the link with those in progress there. A load past its expected duration is expected to
    take as long again, at most as long as a new one if it may wait for its turn.
    """
    residency = cluster.holders(key).get(pod.name)
    if residency is not None and residency.is_warm:
        return None
    begun_s = residency.since_s if residency else now_s
    if cluster.bases and (base := cluster.base_of(key)):
        first = remaining_load(base, pod, pod.estimates[base], cluster, now_s)
        if first is not None:
            own = measured.load_from(residency.tier if residency else Tier.REMOTE, None)
            return RemainingLoad(
                first.seconds + own.seconds, first.is_measured and own.is_measured, first.guessed_s
            )
        begun_s = max(begun_s, cluster.holders(base)[pod.name].since_s)
    link = pod.info.link_bytes_per_s
    if residency is None:
        whole = measured.load_from(Tier.REMOTE, link)
    else:
        whole = measured.load_from(residency.loading_from or residency.tier, link)
        elapsed_s = max(0.0, now_s - begun_s)
        if residency.is_warming and elapsed_s < whole.seconds:
            return RemainingLoad(whole.seconds - elapsed_s, whole.is_measured)
    others = sum(
        each.is_warming
        for name, each in cluster.residency.on_device(pod.name).items()
        if name != key
    )
    seconds = (1 + others) * whole.seconds
    if residency is None or not residency.is_warming:
        return RemainingLoad(seconds, whole.is_measured)
    seconds = min(elapsed_s, seconds) if others else elapsed_s
    return RemainingLoad(seconds, whole.is_measured, seconds)
