"""Choose per request between colocation, queueing, proxying and a cold start, by forecast.

Source: Liu 2025, section 6.5, which leaves the dynamic choice as future work. The forecasts are
those of `latency_model`; the shortest wins, on a tie an option without a load. A new copy also
serves later requests: the time that earlier requests lost for lack of a copy is subtracted from a
cold start's forecast (`gateway.routing.ski_rental`), unless the request would then miss its
deadline.

In a pool of several kinds of accelerators each option is considered at the best pod of each kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

    from gateway.routing.decision import LatencyEstimate, RequestView
    from registry.domain.cluster import ClusterState
    from registry.domain.pod_state import PodState


def auto(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    """Take the option that is forecast to end first."""
    warm = cluster.warm(request.key)
    warming = cluster.warming(request.key)
    options: list[RoutingOption] = []
    if len(cluster.pods.kinds) > 1:
        options = _options_by_kind(request, cluster, warm, warming, now_s)
    elif pod := fewest_inferring(warm):
        forecast = run_at(pod, request, cluster, now_s)
        if pod.inferring == 0:  # no option ends sooner: every one takes at least this long
            return SendTo(pod.name, pod.name, LoadMode.WARM, Reason.WARM, forecast=forecast)
        options.append(
            RoutingOption("colocate", forecast, Reason.WARM, pod.name, pod.name, LoadMode.WARM)
        )
    elif pod := fewest_inferring(warming):
        forecast = run_at(pod, request, cluster, now_s)
        options.append(
            RoutingOption("join", forecast, Reason.WARMING, pod.name, pod.name, LoadMode.JOIN)
        )
    if busy := [pod for pod in (*warm, *warming) if not pod.has_free_slot]:
        reason = Reason.QUEUE_WARM_BUSY if warm else Reason.QUEUE_WARMING
        options.append(RoutingOption("queue", wait_for(busy, request, cluster, now_s), reason))
    if proxy := _proxy(request, cluster, warm, warming, now_s):
        options.append(proxy)
    cold = _cold_start(request, cluster, warm, warming, now_s)
    if cold is not None:
        options.append(cold)
    if not options:
        return Wait(Reason.QUEUE_NO_SLOT if cluster.pods else Reason.NO_PODS)
    best = _soonest(options)
    loss = None
    if cold is not None and best is not cold and warm and not warming:
        hold_s = cluster.pods[cold.predict].estimates[request.key].stages.hold_s
        loss = _loss(best.forecast, cold.forecast, hold_s)
    return _decision(best, tuple(options), loss)


def _options_by_kind(
    request: RequestView,
    cluster: ClusterState,
    warm: Sequence[PodState],
    warming: Sequence[PodState],
    now_s: float,
) -> list[RoutingOption]:
    """Colocate with, or join, the best pod of each kind of accelerator.

    Of one kind a pod without other inferences is best; a faster kind may end sooner in spite of a
    queue or a load.
    """
    options = []
    for kind in cluster.pods.kinds:
        if pod := fewest_inferring([pod for pod in warm if pod.kind == kind]):
            name, reason, mode = "colocate", Reason.WARM, LoadMode.WARM
        elif pod := fewest_inferring([pod for pod in warming if pod.kind == kind]):
            name, reason, mode = "join", Reason.WARMING, LoadMode.JOIN
        else:
            continue
        forecast = run_at(pod, request, cluster, now_s)
        options.append(RoutingOption(name, forecast, reason, pod.name, pod.name, mode))
    return options


def _proxy(
    request: RequestView,
    cluster: ClusterState,
    warm: Sequence[PodState],
    warming: Sequence[PodState],
    now_s: float,
) -> RoutingOption | None:
    """Proxying through an entry pod that has the model's tokenizer, if there is one."""
    predict = least_busy_below(request.target_ongoing, warm, warming)
    is_warm = predict in warm
    if predict is None or (is_warm and predict.has_free_slot):
        return None  # running there ends no later than inferring there through another pod
    prepared = [
        pod
        for name in cluster.holders(request.key)
        if name != predict.name and (pod := cluster.pods.get(name)) and pod.has_free_slot
    ]
    if prepared:
        entry: PodState | None = least_loaded(prepared, request.draw)
    else:
        entry = least_loaded_free(cluster, request.draw, (predict.name,))
    if entry is None:
        return None
    return RoutingOption(
        "proxy",
        proxy_to(predict, entry, request, cluster, now_s),
        Reason.WARM_REMOTE if is_warm else Reason.WARMING_REMOTE,
        entry.name,
        predict.name,
        LoadMode.WARM if is_warm else LoadMode.JOIN,
        target_ongoing=request.target_ongoing,
    )


def _cold_start(
    request: RequestView,
    cluster: ClusterState,
    warm: Sequence[PodState],
    warming: Sequence[PodState],
    now_s: float,
) -> RoutingOption | None:
    """A load at a pod that neither holds nor loads the model, if one has a free slot."""
    pod = _best_cold(request, cluster, {pod.name for pod in (*warm, *warming)}, now_s)
    if pod is None:
        return None
    forecast = run_at(pod, request, cluster, now_s)
    deadline_s = request.deadline_s
    is_late = deadline_s is not None and now_s + forecast.seconds > deadline_s
    return RoutingOption(
        "cold start",
        forecast,
        Reason.COLD_WARM_BUSY if warm or warming else Reason.COLD,
        pod.name,
        pod.name,
        LoadMode.LOAD,
        max_other_copies=len(warm) + len(warming),
        credit_s=0.0 if is_late else request.lost_s,
    )


def _best_cold(
    request: RequestView, cluster: ClusterState, excluded: set[str], now_s: float
) -> PodState | None:
    """The cheapest cold start of each kind of accelerator; of these, the first to respond."""
    if len(cluster.pods.kinds) <= 1:
        return best_cold(cluster, request.key, request.draw, excluded)
    found = [
        pod
        for kind in cluster.pods.kinds
        if (pod := best_cold(cluster, request.key, request.draw, excluded, kind))
    ]
    return min(found, key=lambda pod: run_at(pod, request, cluster, now_s).seconds, default=None)


def _soonest(options: Sequence[RoutingOption]) -> RoutingOption:
    """The option with the lowest cost; the first one of equals."""
    best = options[0]
    best_s = best.cost_s
    for option in options:
        cost_s = option.cost_s
        if cost_s < best_s:
            best, best_s = option, cost_s
    return best


def _loss(forecast: LatencyEstimate, cold: LatencyEstimate, hold_s: float) -> ColdStartLoss | None:
    """The time lost by a request that a warm copy serves later, or in a batch with others."""
    lost_s = forecast.seconds - hold_s
    return ColdStartLoss(lost_s, cold.seconds - hold_s) if lost_s > 0 else None


def _decision(
    best: RoutingOption, options: tuple[RoutingOption, ...], loss: ColdStartLoss | None
) -> SendTo | Wait:
    if best.mode is None:
        return Wait(best.reason, best.forecast, options, loss)
    return SendTo(
        best.entry, best.predict, best.mode, best.reason, best.max_other_copies,
        best.target_ongoing, best.forecast, options, loss,
    )  # fmt: skip
