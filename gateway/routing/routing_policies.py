"""Routing policies by their name in annotations, headers, metrics and plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.routing.auto import auto
from gateway.routing.batch_round_robin import batch_round_robin
from gateway.routing.colocation import colocation, colocation_queueing
from gateway.routing.decision import Decision, RequestView
from gateway.routing.load_balancing import least_loaded_pod, random_pod, round_robin
from gateway.routing.remote_proxy import remote_proxy
from registry.domain.cluster import ClusterState
from registry.domain.model import RoutingPolicy

RoutingFunction = Callable[[RequestView, ClusterState, float], Decision]

ROUTING_POLICIES: Mapping[RoutingPolicy, RoutingFunction] = {
    RoutingPolicy.AUTO: auto,
    RoutingPolicy.COLOCATION: colocation,
    RoutingPolicy.COLOCATION_QUEUEING: colocation_queueing,
    RoutingPolicy.REMOTE_PROXY: remote_proxy,
    RoutingPolicy.RANDOM: random_pod,
    RoutingPolicy.ROUND_ROBIN: round_robin,
    RoutingPolicy.LEAST_LOADED: least_loaded_pod,
    RoutingPolicy.BATCH_ROUND_ROBIN: batch_round_robin,
}
