"""The pod with a free slot at which a request ends first, among those that have its model."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from gateway.routing.device_backlog import is_idle
from gateway.routing.latency_model import run_at
from gateway.routing.pod_selection import fewest_inferring

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.routing.decision import LatencyEstimate, RequestView
    from registry.domain.cluster import ClusterState
    from registry.domain.pod_state import PodState

_MAX_COMPARED: Final = 8
_SAME_TIME_S: Final = 1e-6


@dataclass(frozen=True, slots=True)
class PodForecast:
    pod: PodState
    forecast: LatencyEstimate


def run_soonest(
    pods: Sequence[PodState], request: RequestView, cluster: ClusterState, now_s: float
) -> PodForecast | None:
    """Run at the pod with a free slot that responds first, delays of others there included.

    None if there is no such pod. One without other inferences comes first; of many pods only those
    with the fewest are compared. Ties: as `fewest_inferring`.
    """
    first = fewest_inferring(pods)
    if first is None:
        return None
    best = PodForecast(first, run_at(first, request, cluster, now_s))
    if is_idle(first):
        return best
    others = [pod for pod in pods if pod.has_free_slot and pod is not first]
    if len(others) > _MAX_COMPARED:
        others = nsmallest(_MAX_COMPARED, others, key=lambda pod: (pod.inferring, pod.name))
    for pod in others:
        forecast = run_at(pod, request, cluster, now_s)
        if _comes_before(pod, forecast, best):
            best = PodForecast(pod, forecast)
    return best


def _comes_before(pod: PodState, forecast: LatencyEstimate, best: PodForecast) -> bool:
    known = best.forecast
    difference_s = forecast.seconds + forecast.delays_s - known.seconds - known.delays_s
    if abs(difference_s) > _SAME_TIME_S:
        return difference_s < 0.0
    other = best.pod
    return (pod.inferring, pod.slots_busy, pod.name) < (
        other.inferring, other.slots_busy, other.name,
    )  # fmt: skip
