"""Choose per request between colocation, queueing, proxying and a cold start, by forecast.

Source: Liu 2025, section 6.5, which leaves the dynamic choice as future work. The forecasts are
`finish_time`'s; the smallest wins, and where two are equal the one that loads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.policies.choices import (
    best_cold,
    fewest_inferring,
    free_pods,
    least_loaded,
    warm_pods,
    warming_pods,
    with_free_slot,
)
from gateway.policies.decision import Decision, Option, Reason, SendTo, Wait
from gateway.policies.finish_time import proxy_to, run_at, wait_for
from gateway.policies.remote_proxy import least_busy_below
from registry.reservation import LoadMode

if TYPE_CHECKING:
    from gateway.policies.decision import Forecast
    from gateway.policies.views import ClusterView, PodView, RequestView


def auto(request: RequestView, cluster: ClusterView, now_s: float) -> Decision:
    """Weigh every way to serve the request now; take the one that is forecast to end first."""
    warm = warm_pods(cluster, request.key)
    warming = warming_pods(cluster, request.key)
    ways: list[tuple[Forecast, int, SendTo | Wait, str]] = []

    def add(forecast: Forecast, decision: SendTo | Wait, way: str) -> None:
        ways.append((forecast, len(ways), decision, way))

    if ready := with_free_slot(warm):
        pod = fewest_inferring(ready)
        forecast = run_at(pod, request, cluster, now_s)
        if pod.inferring == 0:  # nothing can be sooner: every way takes at least this long
            return SendTo(pod.name, pod.name, LoadMode.WARM, Reason.WARM, forecast=forecast)
        add(forecast, SendTo(pod.name, pod.name, LoadMode.WARM, Reason.WARM), "colocate")
    elif joinable := with_free_slot(warming):
        pod = fewest_inferring(joinable)
        join = SendTo(pod.name, pod.name, LoadMode.JOIN, Reason.WARMING)
        add(run_at(pod, request, cluster, now_s), join, "join")
    free = free_pods(cluster)
    if busy := [pod for pod in (*warm, *warming) if not pod.has_free_slot]:
        reason = Reason.QUEUE_WARM_BUSY if warm else Reason.QUEUE_WARMING
        add(wait_for(busy, request, cluster, now_s), Wait(reason), "queue")
    if free and (proxy := _proxy(request, cluster, warm, warming, free)):
        predict, entry = cluster.pods[proxy.predict], cluster.pods[proxy.entry]
        add(proxy_to(predict, entry, request, cluster, now_s), proxy, "proxy")
    if cold := [pod for pod in free if pod not in warm and pod not in warming]:
        pod = best_cold(cold, cluster.holders(request.key), request.draw)
        reason = Reason.COLD_WARM_BUSY if warm or warming else Reason.COLD
        copies = len(warm) + len(warming)
        start = SendTo(pod.name, pod.name, LoadMode.LOAD, reason, max_other_copies=copies)
        add(run_at(pod, request, cluster, now_s), start, "cold start")
    if not ways:
        return Wait(Reason.QUEUE_NO_SLOT if cluster.pods else Reason.NO_PODS)
    return _smallest(ways)


def _proxy(
    request: RequestView,
    cluster: ClusterView,
    warm: list[PodView],
    warming: list[PodView],
    free: list[PodView],
) -> SendTo | None:
    """Proxying by way of a pod that has the model's tokenizer, if there is one."""
    predict = least_busy_below(request.target_ongoing, warm, warming)
    entries = [pod for pod in free if pod is not predict]
    if predict is None or not entries:
        return None
    holders = cluster.holders(request.key)
    prepared = [pod for pod in entries if pod.name in holders]
    entry = least_loaded(prepared or entries, request.draw)
    is_warm = predict in warm
    return SendTo(
        entry.name,
        predict.name,
        LoadMode.WARM if is_warm else LoadMode.JOIN,
        Reason.WARM_REMOTE if is_warm else Reason.WARMING_REMOTE,
        target_ongoing=request.target_ongoing,
    )


def _smallest(ways: list[tuple[Forecast, int, SendTo | Wait, str]]) -> SendTo | Wait:
    forecast, _, decision, _ = min(ways, key=lambda way: (way[0].seconds, way[1]))
    options = tuple(
        Option(
            way=way,
            entry=choice.entry if isinstance(choice, SendTo) else "",
            predict=choice.predict if isinstance(choice, SendTo) else "",
            forecast=expected,
        )
        for expected, _, choice, way in ways
    )
    if isinstance(decision, Wait):
        return Wait(decision.reason, forecast, options)
    return SendTo(
        decision.entry, decision.predict, decision.mode, decision.reason,
        max_other_copies=decision.max_other_copies, target_ongoing=decision.target_ongoing,
        forecast=forecast, options=options,
    )  # fmt: skip
