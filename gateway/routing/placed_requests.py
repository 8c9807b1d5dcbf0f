"""Records a request at the pods that serve it: what later decisions expect it to take.

Recorded before the reservation, so that a request that is still on its way counts in full.
"""

from dataclasses import replace

from gateway.routing.decision import Reason, SendTo
from gateway.routing.latency_model import PodForecast, transfer_time
from registry.domain.cluster import ClusterState
from registry.domain.device_backlog import device_backlog, remaining_load
from registry.domain.device_work import ASSUMED_DUE_S
from registry.domain.pod_state import LoadMode, PlacedRequest


def record_placed(
    decision: SendTo,
    key: str,
    deadline_s: float | None,
    cluster: ClusterState,
    now_s: float,
    size_class: int | None = None,
) -> PlacedRequest | None:
    """The record, which its owner ends; None if a pod is gone."""
    forecast, predict = decision.forecast, cluster.pods.get(decision.predict)
    if predict is None or decision.entry not in cluster.pods:
        return None
    if decision.on_sent is not None:
        decision.on_sent(cluster, now_s)
    if decision.mode is LoadMode.WARM and isinstance(forecast, PodForecast):
        return record_at(forecast, key, deadline_s, now_s)  # made just before
    entry = cluster.pods[decision.entry]
    measured = predict.estimates[key]
    times = around = measured.stages_of(size_class)
    load_s = 0.0
    if decision.mode is not LoadMode.WARM:
        load = remaining_load(key, predict, measured, cluster, now_s)
        load_s = load.seconds if load else 0.0
    if entry is predict:
        ready_s = load_s + times.preprocess_s
    else:
        around = entry.estimates[key].stages
        transfer_s = transfer_time(entry, key, cluster).seconds
        ready_s = max(load_s, transfer_s + around.preprocess_s)
    start_s = ready_s
    if forecast is not None:  # made just before, for these pods
        start_s = max(ready_s, forecast.seconds - times.infer_s - around.postprocess_s)
    # Replicas in turn are chosen without regard to their queues, which may be long.
    elif predict.inferring and decision.reason is not Reason.BATCH_TURN:
        backlog = device_backlog(
            predict, key, deadline_s, cluster, now_s, measured.stages, ready_s, load_s
        )
        start_s = max(start_s, backlog.free_s)
    placed = PlacedRequest(
        key,
        now_s,
        now_s + ready_s + ASSUMED_DUE_S if deadline_s is None else deadline_s,
        now_s + ready_s,
        now_s + start_s,
        times.share_s,
        times.infer_s,
        times.is_measured,
        around.postprocess_s,
        entry.work,
        predict.work,
    )
    if entry is not predict:
        entry.work.proxied[placed] = None
    predict.work.add(
        placed, replace(times, preprocess_s=ready_s - load_s, postprocess_s=around.postprocess_s)
    )
    return placed


def record_at(
    forecast: PodForecast, key: str, deadline_s: float | None, now_s: float
) -> PlacedRequest:
    """As `record_placed`, of a request that runs at a pod that has its model."""
    work, times = forecast.pod.work, forecast.times
    ready_s = now_s + times.preprocess_s
    placed = PlacedRequest(
        key,
        now_s,
        ready_s + ASSUMED_DUE_S if deadline_s is None else deadline_s,
        ready_s,
        now_s + forecast.start_s,
        times.share_s,
        times.infer_s,
        times.is_measured,
        times.postprocess_s,
        work,
        work,
    )
    work.add(placed, times)
    return placed
