"""Choose per request between colocation, queueing, proxying and a cold start, by forecast.

Source: Liu 2025, section 6.5, which leaves the dynamic choice as future work. The forecasts are
`finish_time`'s; the smallest wins, and where two are equal the one that loads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.policies.choices import (
    best_cold,
    fewest_inferring,
    least_loaded,
    least_loaded_free,
    with_free_slot,
)
from gateway.policies.decision import Decision, Option, Reason, SendTo, Wait
from gateway.policies.finish_time import proxy_to, run_at, wait_for
from gateway.policies.remote_proxy import least_busy_below
from registry.reservation import LoadMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.policies.decision import Forecast
    from gateway.policies.views import ClusterView, PodView, RequestView


def auto(request: RequestView, cluster: ClusterView, now_s: float) -> Decision:
    """Weigh every way to serve the request now; take the one that is forecast to end first."""
    warm = cluster.warm(request.key)
    warming = cluster.warming(request.key)
    ways: list[tuple[Forecast, SendTo | Wait, str]] = []
    if ready := with_free_slot(warm):
        pod = fewest_inferring(ready)
        forecast = run_at(pod, request, cluster, now_s)
        if pod.inferring == 0:  # nothing can be sooner: every way takes at least this long
            return SendTo(pod.name, pod.name, LoadMode.WARM, Reason.WARM, forecast=forecast)
        send = SendTo(pod.name, pod.name, LoadMode.WARM, Reason.WARM)
        ways.append((forecast, send, "colocate"))
    elif joinable := with_free_slot(warming):
        pod = fewest_inferring(joinable)
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
        ways.append((run_at(cold, request, cluster, now_s), start, "cold start"))
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


def _smallest(ways: list[tuple[Forecast, SendTo | Wait, str]]) -> SendTo | Wait:
    forecast, decision, _ = ways[0]
    for way in ways:  # the first of equals
        if way[0].seconds < forecast.seconds:
            forecast, decision, _ = way
    decision.forecast = forecast
    decision.options = tuple(
        [
            Option(way, choice.entry, choice.predict, expected)
            if isinstance(choice, SendTo)
            else Option(way, "", "", expected)
            for expected, choice, way in ways
        ]
    )
    return decision
