"""The ways to serve a request beside one taken without a comparison, for `pilotlight explain`.

Fixed policies compare nothing, `auto` nothing where a warm pod is certain to win. The ways are the
options of `auto` at the same moment, and others where it needed no more than one. The way taken has
`auto`'s price where `auto` considers the same pods, else its own time and delays alone.
"""

from dataclasses import replace

from gateway.routing.auto import auto, run_here
from gateway.routing.cold_start import cold_start
from gateway.routing.decision import Decision, Reason, RequestView, RoutingOption, SendTo
from gateway.routing.latency_model import estimate_of
from gateway.routing.pod_selection import run_soonest
from registry.domain.cluster import ClusterState
from registry.domain.pod_state import LoadMode


def ways(
    decision: Decision, request: RequestView, cluster: ClusterState, now_s: float
) -> tuple[RoutingOption, ...]:
    """The way that `decision` takes, and those that `auto` would have compared.

    No later decision differs for it.
    """
    with cluster.eviction_prices.held():
        weighed = auto(request, cluster, now_s)
        options = weighed.options
        if not options and isinstance(weighed, SendTo):
            taken = _way(weighed, request, cluster, now_s)
            options = (taken, *_beside(taken, request, cluster, now_s))
        if not isinstance(decision, SendTo):
            return options
        pods = (decision.entry, decision.predict)
        same = [each for each in options if (each.entry, each.predict) == pods]
        others = tuple(each for each in options if (each.entry, each.predict) != pods)
        taken = (
            replace(same[0], reason=decision.reason)
            if same
            else _way(decision, request, cluster, now_s)
        )
        return (taken, *others)


def _beside(
    taken: RoutingOption, request: RequestView, cluster: ClusterState, now_s: float
) -> list[RoutingOption]:
    """Another pod that has the model, and a load at one that has not, where there are."""
    warm, found = cluster.warm(request.key), []
    others = [pod for pod in warm if pod.name != taken.predict]
    if soonest := run_soonest(others, request, cluster, now_s):
        found.append(run_here("colocate", soonest, Reason.WARM, LoadMode.WARM))
    if cold := cold_start(request, cluster, warm, cluster.warming(request.key), now_s):
        found.append(cold)
    return found


def _way(
    decision: SendTo, request: RequestView, cluster: ClusterState, now_s: float
) -> RoutingOption:
    """Without what it costs others, which only `auto` prices."""
    forecast = estimate_of(decision, request, cluster, now_s)
    residency = cluster.holders(request.key).get(decision.predict)
    name = "cold start"
    if decision.entry != decision.predict:
        name = "proxy"
    elif residency is not None and residency.is_warm:
        name = "colocate"
    elif residency is not None and residency.is_warming:
        name = "join"
    return RoutingOption(
        name,
        forecast,
        decision.reason,
        decision.entry,
        decision.predict,
        decision.mode,
        delays_s=forecast.delays_s,
    )
