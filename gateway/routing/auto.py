"""Choose per request between colocation, queueing, proxying and a cold start, by cost.

Source: Liu 2025, section 6.5, which leaves the dynamic choice as future work. An option costs the
time to the response (`latency_model`), what it delays and evicts, and what a late response costs,
less what it leaves to other requests (`cold_start`). The lowest cost wins, on a tie
an option without a load.

A model with a warm placed copy is loaded nowhere else: its requests keep to placed copies.

In a pool of several kinds of accelerators each option is considered at the best pod of each kind.
"""

from collections.abc import Sequence
from math import inf

from gateway.routing.cold_start import cold_start, evicts_too_soon, queue_cost_s
from gateway.routing.decision import (
    ColdStartLoss,
    Decision,
    LatencyEstimate,
    Reason,
    RequestView,
    RoutingOption,
    SendTo,
    Wait,
)
from gateway.routing.latency_model import PodForecast, proxy_to, wait_for
from gateway.routing.pod_selection import (
    MAX_COMPARED,
    least_busy_below,
    least_loaded,
    least_loaded_free,
    run_soonest,
    soonest_of,
)
from registry.domain.cluster import ClusterState
from registry.domain.device_backlog import is_idle
from registry.domain.pod_state import LoadMode, PodState


def auto(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    """Take the option with the lowest cost: the soonest warm pod where it is certain to be that."""
    key, size_class, deadline_s = request.key, request.size_class, request.deadline_s
    if request.cached is not None:
        return weigh(request, cluster, now_s)
    certain = certain_pod(key, size_class, deadline_s, cluster, now_s)
    if certain is not None:
        return run_warm(certain)
    serving = cluster.residency.serving(key)
    free = serving.free.first(MAX_COMPARED)
    if not serving.are_alike or not serving.have_free_slots or not free:
        return weigh(request, cluster, now_s)
    found = soonest_of(free, key, size_class, deadline_s, cluster, now_s)
    cost_s = found.seconds + found.delays_s
    if _may_pay(request, found.seconds, cost_s, cluster, now_s):
        return weigh(request, cluster, now_s, found)
    loss = None if serving.warming else _loss(found, None, request, cluster)
    return run_warm(found, loss)


def run_warm(found: PodForecast, loss: ColdStartLoss | None = None) -> SendTo:
    name = found.pod.name  # by position: names cost a tenth of a decision
    return SendTo(name, name, LoadMode.WARM, Reason.WARM, -1, 0, found, (), loss)


def certain_pod(
    key: str, size_class: int | None, deadline_s: float | None, cluster: ClusterState, now_s: float
) -> PodForecast | None:
    """The soonest warm pod where no option can end sooner, whatever else is known of a request.

    An idle one: every option takes at least as long. Another one where all that serve the model
    have free slots, and no other pod may load it.
    """
    serving = cluster.residency.serving(key)
    free = serving.free.first(MAX_COMPARED)
    if not free or not serving.are_alike:
        return None
    if (serving.may_be_more or not serving.have_free_slots) and not is_idle(free[0]):
        return None
    return soonest_of(free, key, size_class, deadline_s, cluster, now_s)


def weigh(
    request: RequestView,
    cluster: ClusterState,
    now_s: float,
    found: PodForecast | None = None,
    *,
    has_hopeless: bool = False,
) -> Decision:
    """Compare all options. `found`: the soonest warm pod, if it is known.

    `has_hopeless`: also a load that costs more for certain.
    """
    serving = cluster.residency.serving(request.key)
    warm, warming, can_load = serving.warm, serving.warming, serving.may_be_more
    options: list[RoutingOption] = []
    if len(cluster.pods.kinds) > 1:
        options = _options_by_kind(request, cluster, warm, warming, now_s)
    elif found or (free := serving.free.first(MAX_COMPARED)):
        if found is None and (request.cached is not None or not serving.are_alike):
            found = run_soonest(warm, request, cluster, now_s)
        found = found or soonest_of(
            free, request.key, request.size_class, request.deadline_s, cluster, now_s
        )
        options.append(run_here("colocate", found, Reason.WARM, LoadMode.WARM))
    elif warming and (found := run_soonest(warming, request, cluster, now_s)):
        options.append(run_here("join", found, Reason.WARMING, LoadMode.JOIN))
    if busy := [pod for pod in (*warm, *warming) if not pod.has_free_slot]:
        reason = Reason.QUEUE_WARM_BUSY if warm else Reason.QUEUE_WARMING
        options.append(RoutingOption("queue", wait_for(busy, request, cluster, now_s), reason))
    if proxy := _proxy(request, cluster, warm, now_s):
        options.append(proxy)
    cold = None
    is_weighed = can_load and (not options or has_hopeless)
    if can_load and not is_weighed:
        best = _soonest(options, request, now_s)
        is_weighed = _may_pay(request, best.forecast.seconds, best.cost_s, cluster, now_s)
    if is_weighed:
        cold = cold_start(request, cluster, warm, warming, now_s)
    if cold is not None:
        options.append(cold)
    if not options:
        return Wait(_why_nowhere(cluster))
    best = _soonest(options, request, now_s)
    if best is cold and not (warm or warming) and evicts_too_soon(best, request, cluster, now_s):
        return Wait(Reason.QUEUE_MEMORY, best.forecast, tuple(options))
    loss = None
    if can_load and best is not cold and warm and not warming and (cold or not is_weighed):
        loss = _loss(best.forecast, cold, request, cluster)
    return _decision(best, tuple(options), loss, request)


def run_here(name: str, found: PodForecast, reason: Reason, mode: LoadMode) -> RoutingOption:
    pod = found.pod.name
    return RoutingOption(name, found, reason, pod, pod, mode, delays_s=found.delays_s)


def _why_nowhere(cluster: ClusterState) -> Reason:
    if not cluster.pods:
        return Reason.NO_PODS
    has_slot = any(pod.has_free_slot for pod in cluster.pods.values())
    return Reason.QUEUE_MEMORY if has_slot else Reason.QUEUE_NO_SLOT


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
        if found := run_soonest([pod for pod in warm if pod.kind == kind], request, cluster, now_s):
            name, reason, mode = "colocate", Reason.WARM, LoadMode.WARM
        elif found := run_soonest(
            [pod for pod in warming if pod.kind == kind], request, cluster, now_s
        ):
            name, reason, mode = "join", Reason.WARMING, LoadMode.JOIN
        else:
            continue
        options.append(run_here(name, found, reason, mode))
    return options


def _proxy(
    request: RequestView, cluster: ClusterState, warm: Sequence[PodState], now_s: float
) -> RoutingOption | None:
    """Proxying through an entry pod that has the model's tokenizer, if there is one.

    Only to warm pods: the entry pod's slot would be held for the whole load.
    """
    predict = least_busy_below(request.target_ongoing, warm, ())
    if predict is None or predict.has_free_slot:
        return None  # running there ends no later than inferring there through another pod
    measured = predict.estimates[request.key]
    if measured.fastest_load_s <= measured.stages_of(request.size_class).share_s:
        return None  # a copy of its own takes the entry pod's slot for less than that of two
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
    forecast = proxy_to(predict, entry, request, cluster, now_s)
    if not (forecast.is_measured or request.may_try_transfer):
        return None  # one that ends too late measures nothing, and the next would do the same
    return RoutingOption(
        "proxy",
        forecast,
        Reason.WARM_REMOTE,
        entry.name,
        predict.name,
        LoadMode.WARM,
        target_ongoing=request.target_ongoing,
        delays_s=forecast.delays_s
        + _slot_cost_s(forecast.seconds, entry, predict, request, cluster, now_s),
    )


def _slot_cost_s(
    forecast_s: float,
    entry: PodState,
    predict: PodState,
    request: RequestView,
    cluster: ClusterState,
    now_s: float,
) -> float:
    """What others lose since the entry pod's slot is held until the response.

    At the predict pod the request would hold one only for its own stages.
    """
    hold_s = predict.estimates[request.key].stages_of(request.size_class).hold_s
    device = cluster.prices_at(now_s).device
    price_s = device(entry).slot_price_s(forecast_s) - device(predict).slot_price_s(hold_s)
    delays_s = max(0.0, price_s)
    return delays_s + queue_cost_s(max(0.0, forecast_s - hold_s), request, cluster)


def _may_pay(
    request: RequestView, seconds: float, cost_s: float, cluster: ClusterState, now_s: float
) -> bool:
    """False if another copy would certainly cost more than an option of this time and cost.

    The search for its pod would take most of a decision's time.
    """
    if request.ahead or request.behind:
        return True
    if request.deadline_s is not None and seconds > request.deadline_s - now_s:
        return True
    least_s = min(
        [
            measured.fastest_load_s + measured.stages_of(request.size_class).hold_s
            for table in cluster.pods.fastest()
            if (measured := table[request.key])
        ]
    )
    if least_s <= cost_s:
        return True
    has_credit = least_s - request.lost_s <= cost_s
    return has_credit and cluster.prices_at(now_s).is_spare(request.key, now_s)


def _soonest(options: Sequence[RoutingOption], request: RequestView, now_s: float) -> RoutingOption:
    """The option with the lowest cost; the first one of equals.

    One that is certain to end after the deadline costs as much more as the client would wait.
    """
    best, best_s = options[0], inf
    for option in options:
        cost_s = option.cost_s
        if request.deadline_s is not None:
            known_s = option.forecast.seconds - option.forecast.guessed_s
            if known_s > request.deadline_s - now_s:
                cost_s += request.deadline_s - request.arrival_s
        if cost_s < best_s:
            best, best_s = option, cost_s
    return best


def _loss(
    forecast: LatencyEstimate,
    cold: RoutingOption | None,
    request: RequestView,
    cluster: ClusterState,
) -> ColdStartLoss | None:
    """The time lost by a request that a warm copy serves later, or in a batch with others."""
    measured = cluster.measured(request.key)
    hold_s = measured.stages_of(request.size_class).hold_s
    lost_s = forecast.seconds - hold_s
    if lost_s <= 0.0:
        return None
    return ColdStartLoss(
        lost_s, cold.forecast.seconds - hold_s if cold else measured.fastest_load_s
    )


def _decision(
    best: RoutingOption,
    options: tuple[RoutingOption, ...],
    loss: ColdStartLoss | None,
    request: RequestView,
) -> SendTo | Wait:
    if best.mode is None:
        return Wait(best.reason, best.forecast, options, loss)
    return SendTo(
        best.entry,
        best.predict,
        best.mode,
        best.reason,
        best.max_other_copies,
        best.target_ongoing,
        best.forecast,
        options,
        loss,
        _is_investment(best, request),
    )


def _is_investment(best: RoutingOption, request: RequestView) -> bool | None:
    """Whether a load costs others no more than it leaves to them and what was lost without it."""
    if best.mode is not LoadMode.LOAD:
        return None
    others_s = best.delays_s + best.evicts_s + best.leaves_s
    return others_s <= max(best.credit_s, request.lost_s)
