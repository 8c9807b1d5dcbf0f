"""`auto` that never proxies: one of a twin's experts (`research.experiments.regret.twin`)."""

from dataclasses import replace

from gateway.routing.auto import auto
from gateway.routing.decision import Decision, RequestView
from registry.domain.cluster import ClusterState


def auto_without_proxies(request: RequestView, cluster: ClusterState, now_s: float) -> Decision:
    return auto(replace(request, target_ongoing=0), cluster, now_s)
