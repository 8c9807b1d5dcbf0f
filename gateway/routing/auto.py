"""Choose per request between colocation, queueing, proxying and a cold start, by forecast.

Source: Liu 2025, section 6.5, which leaves the dynamic choice as future work. The forecasts are
`finish_time`'s; the smallest wins, and where two are equal the one that loads nothing. A copy also
serves those who come later: what earlier requests lost for want of one is taken off a cold start's
forecast (`gateway.routing.ski_rental`), unless the request would then miss its deadline.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from gateway.routing.decision import ColdStartLoss, Decision, Reason, RoutingOption, SendTo, Wait
from gateway.routing.latency_model import proxy_to, run_at, wait_for
from gateway.routing.pod_selection import (
    best_cold,
    fewest_inferring,
    least_loaded,
    least_loaded_free,
)
from gateway.routing.remote_proxy import least_busy_below
from registry.domain.reservation import LoadMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.routing.decision import LatencyEstimate
    from gateway.routing.views import ClusterView, PodView, RequestView

_COLD_START: Final = "cold start"


def auto(request: RequestView, cluster: ClusterView, now_s: float) -> Decision:
    """Weigh every way to serve the request now; take the one that is forecast to end first."""
    warm = cluster.warm(request.key)
    warming = cluster.warming(request.key)
    ways: list[tuple[LatencyEstimate, SendTo | Wait, str]] = []
    if pod := fewest_inferring(warm):
        forecast = run_at(pod, request, cluster, now_s)
        if pod.inferring == 0:  # nothing can be sooner: every way takes at least this long
            return SendTo(pod.name, pod.name, LoadMode.WARM, Reason.WARM, forecast=forecast)
        send = SendTo(pod.name, pod.name, LoadMode.WARM, Reason.WARM)
        ways.append((forecast, send, "colocate"))
    elif pod := fewest_inferring(warming):
        join = SendTo(pod.name, pod.name, LoadMode.JOIN, Reason.WARMING)
        ways.append((run_at(pod, request, cluster, now_s), join, "join"))
    if busy := [pod for pod in (*warm, *warming) if not pod.has_free_slot]:
        reason = Reason.QUEUE_WARM_BUSY if warm else Reason.QUEUE_WARMING
        ways.append((wait_for(busy, request, cluster, now_s), Wait(reason), "queue"))
    if proxy := _proxy(request, cluster, warm, warming):
        predict, entry = cluster.pods[proxy.predict], cluster.pods[proxy.entry]
        ways.append((proxy_to(predict, entry, request, cluster, now_s), proxy, "proxy"))
    holding = {pod.name for pod in (*warm, *warming)}
    if cold := best_cold(cluster, request.key, request.draw, holding):
        reason = Reason.COLD_WARM_BUSY if warm or warming else Reason.COLD
        copies = len(warm) + len(warming)
        start = SendTo(cold.name, cold.name, LoadMode.LOAD, reason, max_other_copies=copies)
        forecast = run_at(cold, request, cluster, now_s)
        ways.append((forecast, start, _COLD_START))
        decision = _smallest(ways, _credit_s(request, forecast, now_s))
        if decision is not start and warm and not warming:
            decision.loss = _loss(decision, forecast, cluster.measured(request.key).stages.hold_s)
        return decision
    if not ways:
        return Wait(Reason.QUEUE_NO_SLOT if cluster.pods else Reason.NO_PODS)
    return _smallest(ways)


def _proxy(
    request: RequestView,
    cluster: ClusterView,
    warm: Sequence[PodView],
    warming: Sequence[PodView],
) -> SendTo | None:
    """Proxying by way of a pod that has the model's tokenizer, if there is one."""
    predict = least_busy_below(request.target_ongoing, warm, warming)
    is_warm = predict in warm
    if predict is None or (is_warm and predict.has_free_slot):
        return None  # to run there is no later than to infer there by way of another
    prepared = [
        pod
        for name in cluster.holders(request.key)
        if name != predict.name and (pod := cluster.pods.get(name)) and pod.has_free_slot
    ]
    if prepared:
        entry: PodView | None = least_loaded(prepared, request.draw)
    else:
        entry = least_loaded_free(cluster, request.draw, (predict.name,))
    if entry is None:
        return None
    return SendTo(
        entry.name,
        predict.name,
        LoadMode.WARM if is_warm else LoadMode.JOIN,
        Reason.WARM_REMOTE if is_warm else Reason.WARMING_REMOTE,
        target_ongoing=request.target_ongoing,
    )


def _credit_s(request: RequestView, cold: LatencyEstimate, now_s: float) -> float:
    """What is taken off a cold start's forecast."""
    deadline_s = request.deadline_s
    return 0.0 if deadline_s is not None and now_s + cold.seconds > deadline_s else request.lost_s


def _loss(decision: SendTo | Wait, cold: LatencyEstimate, hold_s: float) -> ColdStartLoss | None:
    """What a request loses that is served by a warm copy, but not at once and alone."""
    assert decision.forecast is not None, "every way that was weighed has one"
    lost_s = decision.forecast.seconds - hold_s
    return ColdStartLoss(lost_s, cold.seconds - hold_s) if lost_s > 0 else None


def _smallest(
    ways: list[tuple[LatencyEstimate, SendTo | Wait, str]], credit_s: float = 0.0
) -> SendTo | Wait:
    """The first of equals, with all ways as its options."""
    forecast, decision, _ = ways[0]
    least_s = inf
    for way in ways:
        seconds = way[0].seconds
        if credit_s and way[2] is _COLD_START:
            seconds -= credit_s
        if seconds < least_s:
            least_s = seconds
            forecast, decision, _ = way
    decision.forecast = forecast
    decision.options = tuple(
        [
            RoutingOption(way, choice.entry, choice.predict, expected,
                   credit_s if way is _COLD_START else 0.0)
            if isinstance(choice, SendTo)
            else RoutingOption(way, "", "", expected)
            for expected, choice, way in ways
        ]
    )  # fmt: skip
    return decision
