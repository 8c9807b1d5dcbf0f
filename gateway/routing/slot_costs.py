"""What holding a slot costs other requests, in seconds of waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.routing.decision import RequestView
    from registry.domain.cluster import ClusterState
    from registry.domain.pod_state import PodState


def slot_cost_s(
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
    price_s = cluster.prices_at(now_s).slot_price_s
    delays_s = max(0.0, price_s(entry, forecast_s) - price_s(predict, hold_s))
    return delays_s + queue_cost_s(max(0.0, forecast_s - hold_s), request, cluster)


def queue_cost_s(held_s: float, request: RequestView, cluster: ClusterState) -> float:
    """What queued requests lose while one of the pool's slots is held."""
    if not request.queued:
        return 0.0
    return held_s * request.queued / sum([pod.slots for pod in cluster.pods.values()])
