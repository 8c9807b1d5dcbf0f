"""Routing policies by their name in annotations, headers, metrics and plots, plug-ins included."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from traceback import extract_tb
from typing import Any

from gateway.routing.auto import auto
from gateway.routing.decision import Decision, Reason, Reject, RequestView, SendTo, Wait
from gateway.routing.fixed_policies import (
    colocation,
    colocation_queueing,
    least_loaded_pod,
    random_pod,
    remote_proxy,
    round_robin,
)
from registry.domain.cluster import ClusterState
from registry.domain.model import RoutingPolicy
from registry.domain.pod_state import PodState
from registry.domain.policy_names import ROUTING
from registry.errors import PluginError

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

_ATTRIBUTES = tuple(
    each for each in PodState.__slots__ if each not in ("accepting_changes", "changes", "sharing")
)
"""Of a pod, but for what its `PodIndex` keeps in it."""
_READ = attrgetter(*_ATTRIBUTES)


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
        """Whatever the foreign code does, only this request fails; a full pod is not sent more."""
        pods, before = list(cluster.pods.items()), list(map(_READ, cluster.pods.values()))
        try:
            decision = decide(replace(request), cluster, now_s)
        except BaseException as error:  # it decides at once: all are its own
            where = extract_tb(error.__traceback__)[-1]
            problem = (
                f"raised {type(error).__name__}: {error} ({Path(where.filename).name}, "
                f"line {where.lineno})"
            )
        else:
            if change := _undo(cluster, pods, before):
                problem = f"changed {change}: a policy reads the pool and changes nothing"
            elif isinstance(decision, (Wait, Reject)):
                return decision
            elif not isinstance(decision, SendTo):
                problem = f"must return SendTo, Wait or Reject, returned {decision!r}"
            elif decision.entry not in cluster.pods or decision.predict not in cluster.pods:
                problem = f"chose {decision.entry!r} and {decision.predict!r}: there is no such pod"
            elif cluster.pods[decision.entry].has_free_slot:
                return decision
            else:
                return Wait(Reason.QUEUE_NO_SLOT)
        _undo(cluster, pods, before)
        return Reject(Reason.POLICY_FAILED, f"routing policy {name} {problem}")

    return checked


def _undo(
    cluster: ClusterState, pods: Sequence[tuple[str, PodState]], before: list[tuple[Any, ...]]
) -> str:
    """Take back what a policy changed, and say what it was: the first of it; empty: nothing."""
    index, found = cluster.pods, ""
    if list(index.items()) != pods:
        found = "the pods"
        for name in [name for name, pod in index.items() if (name, pod) not in pods]:
            del index[name]
        for name, pod in pods:
            if pod.changes is index.changes:  # it was taken from the dict, not by the index
                dict.__setitem__(index, name, pod)
            else:
                index[name] = pod
    if list(map(_READ, cluster.pods.values())) == before:
        return found
    for (name, pod), values in zip(pods, before, strict=True):
        for attribute, value in zip(_ATTRIBUTES, values, strict=True):
            if getattr(pod, attribute) != value:
                found = found or f"{attribute} of pod {name}"
                setattr(pod, attribute, value)
                pod.changes.add(pod)
    return found
