"""Routing policies by their name in annotations, headers, metrics and plots, plug-ins included.

Beside `auto` they are baselines. Colocation (Liu 2025, section 4.5) prefers pods where the model is
warm. If no warm or warming pod has a free slot, `colocation` starts cold at another pod at once;
`colocation_queueing` only if no pod is warm or warming. The model-oblivious ones choose any pod
with a free slot, as KServe with Knative does, and load the model there; `random` is the default
scheduler of Liu 2025, 6.2.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from traceback import extract_tb

from gateway.routing.auto import auto
from gateway.routing.decision import Decision, Reason, Reject, RequestView, SendTo, Wait
from gateway.routing.pod_selection import (
    best_cold,
    fewest_inferring,
    free_pods,
    least_busy_below,
    least_loaded,
    least_loaded_free,
    run_soonest,
)
from registry.domain.cluster import ClusterState
from registry.domain.model import RoutingPolicy
from registry.domain.pod_state import LoadMode, PodState
from registry.errors import PluginError
from registry.policy_names import ROUTING


def colocation(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    """A warm or warming pod with a free slot, else a cold start at any pod with a free slot."""
    if warm := _free_warm(request, cluster, now_s):
        return SendTo(warm.name, warm.name, LoadMode.WARM, Reason.WARM)
    if pod := fewest_inferring(cluster.warming(request.key)):
        return SendTo(pod.name, pod.name, LoadMode.JOIN, Reason.WARMING)
    cold = best_cold(cluster, request.key, request.draw)
    if cold is None:
        return Wait(Reason.QUEUE_NO_SLOT if cluster.pods else Reason.NO_PODS)
    reason = Reason.COLD_WARM_BUSY if cluster.warm(request.key) else Reason.COLD
    return SendTo(cold.name, cold.name, LoadMode.LOAD, reason)


def colocation_queueing(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    """A warm pod, else a warming pod, queueing if it has no free slot; else a cold start."""
    if cluster.warm(request.key):
        if warm := _free_warm(request, cluster, now_s):
            return SendTo(warm.name, warm.name, LoadMode.WARM, Reason.WARM)
        return Wait(Reason.QUEUE_WARM_BUSY)
    if warming := cluster.warming(request.key):
        if pod := fewest_inferring(warming):
            return SendTo(pod.name, pod.name, LoadMode.JOIN, Reason.WARMING)
        return Wait(Reason.QUEUE_WARMING)
    cold = best_cold(cluster, request.key, request.draw)
    if cold is None:
        return Wait(Reason.QUEUE_NO_SLOT if cluster.pods else Reason.NO_PODS)
    return SendTo(cold.name, cold.name, LoadMode.LOAD, Reason.COLD, max_other_copies=0)


def _free_warm(request: RequestView, cluster: ClusterState, now_s: float) -> PodState | None:
    """The least busy one with a free slot; where some have a part of the prompt, the soonest."""
    if request.cached is not None:
        found = run_soonest(cluster.warm(request.key), request, cluster, now_s)
        return None if found is None else found.pod
    free = cluster.free_warm(request.key).first(1)
    return free[0] if free else None


def random_pod(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    """Any pod with a free slot, by the request's draw."""
    del now_s
    pods = sorted(free_pods(cluster), key=lambda pod: pod.name)
    return _send(pods[int(request.draw * len(pods))]) if pods else _wait(cluster)


def round_robin(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    """The pods with a free slot in turn, by name."""
    del now_s
    pods = sorted(free_pods(cluster), key=lambda pod: pod.name)
    return _send(pods[request.sequence % len(pods)]) if pods else _wait(cluster)


def least_loaded_pod(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    """The pod with the smallest share of its slots taken."""
    del now_s
    pod = least_loaded_free(cluster, request.draw)
    return _wait(cluster) if pod is None else _send(pod)


def _send(pod: PodState) -> SendTo:
    return SendTo(pod.name, pod.name, LoadMode.LOAD, Reason.MODEL_OBLIVIOUS)


def _wait(cluster: ClusterState) -> Wait:
    return Wait(Reason.QUEUE_NO_SLOT if cluster.pods else Reason.NO_PODS)


def remote_proxy(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    """Entry: the least loaded pod; predict: the least busy warm or warming pod below the target.

    Pre- and postprocess anywhere, infer where the model is warm; the entry pod holds the slot (Liu
    2025, section 4.6). If the model is nowhere, the entry pod loads it. If all pods that hold or
    load it are at the target of ongoing requests, a pod below the target with free memory loads it;
    without one the request waits, since a copy that evicts others costs more than it saves: with
    memory for half of the models 1.3 s on average, and waiting 0.2 s.
    """
    entry = least_loaded_free(cluster, request.draw)
    if entry is None:
        return Wait(Reason.QUEUE_NO_SLOT if cluster.pods else Reason.NO_PODS)
    warm = cluster.warm(request.key)
    warming = cluster.warming(request.key)
    predict = least_busy_below(request.target_ongoing, warm, warming)
    if predict is None:
        return _load_a_copy(request, cluster, warm, warming, now_s)
    is_remote = predict.name != entry.name
    if predict in warm:
        mode, reason = LoadMode.WARM, Reason.WARM_REMOTE if is_remote else Reason.WARM
    else:
        mode, reason = LoadMode.JOIN, Reason.WARMING_REMOTE if is_remote else Reason.WARMING
    return SendTo(entry.name, predict.name, mode, reason, target_ongoing=request.target_ongoing)


def _load_a_copy(
    request: RequestView,
    cluster: ClusterState,
    warm: Sequence[PodState],
    warming: Sequence[PodState],
    now_s: float,
) -> Decision:
    holding = {pod.name for pod in (*warm, *warming)}
    loading = _free_without_model(request, cluster, holding, now_s)
    if loading is None:
        if warm:
            return Wait(Reason.QUEUE_WARM_BUSY)
        return Wait(Reason.QUEUE_WARMING if warming else Reason.QUEUE_TARGET)
    return SendTo(
        loading.name,
        loading.name,
        LoadMode.LOAD,
        Reason.COLD_WARM_BUSY if holding else Reason.COLD,
        max_other_copies=len(holding),
        target_ongoing=request.target_ongoing,
    )


def _free_without_model(
    request: RequestView, cluster: ClusterState, holding: set[str], now_s: float
) -> PodState | None:
    """The least loaded free pod without the model and below the target, if any.

    A further copy only where it evicts none.
    """
    prices = cluster.prices_at(now_s)
    below = [
        pod
        for pod in cluster.pods.values()
        if pod.inferring < request.target_ongoing
        and pod.has_free_slot
        and pod.name not in holding
        and not pod.placed_model
    ]
    if holding:
        below = [pod for pod in below if prices.has_room(pod, request.key)]
    return least_loaded(below, request.draw) if below else None


RoutingFunction = Callable[[RequestView, ClusterState, float], Decision]

ROUTING_POLICIES: Mapping[str, RoutingFunction] = {
    RoutingPolicy.AUTO: auto,
    RoutingPolicy.COLOCATION: colocation,
    RoutingPolicy.COLOCATION_QUEUEING: colocation_queueing,
    RoutingPolicy.REMOTE_PROXY: remote_proxy,
    RoutingPolicy.RANDOM: random_pod,
    RoutingPolicy.ROUND_ROBIN: round_robin,
    RoutingPolicy.LEAST_LOADED: least_loaded_pod,
}


def routing_policy(name: str) -> RoutingFunction:
    """The policy of a name; one that is not installed rejects each request and says so."""
    return ROUTING_POLICIES.get(name) or _plugin(name)


@cache
def _plugin(name: str) -> RoutingFunction:
    try:
        decide = ROUTING.load(name)
    except PluginError as error:
        message = str(error)
        return lambda _request, _cluster, _now_s: Reject(Reason.POLICY_FAILED, message)

    def checked(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
        """Whatever the foreign code raises, only this request fails; full pods get no more."""
        try:
            decision = decide(replace(request), cluster, now_s)
        except BaseException as error:  # it decides at once: all are its own
            where = extract_tb(error.__traceback__)[-1]
            problem = (
                f"raised {type(error).__name__}: {error} ({Path(where.filename).name}, "
                f"line {where.lineno})"
            )
        else:
            if isinstance(decision, (Wait, Reject)):
                return decision
            elif not isinstance(decision, SendTo):
                problem = f"must return SendTo, Wait or Reject, returned {decision!r}"
            elif decision.entry not in cluster.pods or decision.predict not in cluster.pods:
                problem = f"chose {decision.entry!r} and {decision.predict!r}: there is no such pod"
            elif cluster.pods[decision.entry].has_free_slot:
                return decision
            else:
                return Wait(Reason.QUEUE_NO_SLOT)
        return Reject(Reason.POLICY_FAILED, f"routing policy {name} {problem}")

    return checked
