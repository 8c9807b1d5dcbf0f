"""The routing policies by the name they have in annotations, headers, metrics and plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.policies.auto import auto
from gateway.policies.colocation import colocation
from gateway.policies.colocation_queueing import colocation_queueing
from gateway.policies.decision import Decision
from gateway.policies.oblivious import least_loaded_pod, random_pod, round_robin
from gateway.policies.remote_proxy import remote_proxy
from gateway.policies.views import ClusterView, RequestView
from registry.domain.model import RoutingPolicy

RoutingFunction = Callable[[RequestView, ClusterView, float], Decision]

ROUTING_POLICIES: Mapping[RoutingPolicy, RoutingFunction] = {
    RoutingPolicy.AUTO: auto,
    RoutingPolicy.COLOCATION: colocation,
    RoutingPolicy.COLOCATION_QUEUEING: colocation_queueing,
    RoutingPolicy.REMOTE_PROXY: remote_proxy,
    RoutingPolicy.RANDOM: random_pod,
    RoutingPolicy.ROUND_ROBIN: round_robin,
    RoutingPolicy.LEAST_LOADED: least_loaded_pod,
}
