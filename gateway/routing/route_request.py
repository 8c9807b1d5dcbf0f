"""One routing decision: the model's record, the deadline and the policy put together.

Pure like the policies it calls; the dispatcher and the simulator both go through here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.routing.decision import Decision, Reason, Reject, SendTo, Wait
from gateway.routing.latency_model import estimate_of
from gateway.routing.routing_policies import ROUTING_POLICIES
from gateway.routing.views import RequestView
from registry.domain.model import RoutingPolicy
from registry.domain.reservation import LoadMode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.routing.views import ClusterView
    from registry.domain.model import LoadFailure, ModelName, ModelRecord, ModelSpec


@dataclass(slots=True)
class IncomingRequest:
    """A request as it came in. Times in seconds on the registry's clock."""

    id: str
    model: ModelName
    arrival_s: float
    draw: float
    sequence: int
    policy: RoutingPolicy | None = None
    """What the request itself asks for; None: the model's own policy."""
    deadline_s: float | None = None
    due_s: float | None = None
    """When it should be answered where that is no deadline: it is starved by it, not refused."""


@dataclass(slots=True)
class RoutingResult:
    """A decision and what it was made for."""

    decision: Decision
    policy: RoutingPolicy | None
    spec: ModelSpec | None
    """The generation that serves; None where the model is gone."""


def route_request(
    arrival: IncomingRequest,
    models: Mapping[ModelName, ModelRecord],
    cluster: ClusterView,
    *,
    now_s: float,
    ahead: int = 0,
    stalled_s: float = 0.0,
    lost_s: float = 0.0,
    may_load: bool = True,
) -> RoutingResult:
    """Decide about one request now.

    `ahead` others of its model wait in front of it, in a queue that last moved `stalled_s` ago;
    `lost_s` is what others lost for want of a copy. Where it may not load, who would begin a load
    waits for somebody else's.
    """
    record = models.get(arrival.model)
    if record is None:
        gone = Reject(Reason.MODEL_GONE, f"model {arrival.model} does not exist")
        return RoutingResult(gone, arrival.policy, None)
    spec = record.serving
    policy = arrival.policy or spec.policy.routing
    if record.failure is not None and _is_shut(record.failure, spec, cluster, now_s):
        return RoutingResult(_load_failed(record.failure, now_s), policy, spec)
    request = RequestView(  # by position: names cost a tenth of a decision
        spec.key, arrival.arrival_s, arrival.draw, arrival.sequence,
        spec.policy.target_ongoing_requests, ahead, stalled_s, arrival.deadline_s,
        lost_s,
    )  # fmt: skip
    decision = ROUTING_POLICIES[policy](request, cluster, now_s)
    if not may_load and isinstance(decision, SendTo) and decision.mode is LoadMode.LOAD:
        decision = Wait(Reason.QUEUE_NO_SLOT)
    if arrival.deadline_s is not None:
        decision = _within_deadline(decision, request, arrival.deadline_s, cluster, now_s)
    return RoutingResult(decision, policy, spec)


def is_proxied(arrival: IncomingRequest, models: Mapping[ModelName, ModelRecord]) -> bool:
    """Whether the request's policy is `remote-proxy`."""
    record = models.get(arrival.model)
    if record is None:
        return False
    return (arrival.policy or record.serving.policy.routing) is RoutingPolicy.REMOTE_PROXY


def cannot_be_placed(
    arrival: IncomingRequest,
    models: Mapping[ModelName, ModelRecord],
    cluster: ClusterView,
    *,
    least_inferring: int,
    knows_load: bool,
) -> bool:
    """Whether `route_request` is known to say that the request waits on, at a fraction of the cost.

    Under `remote-proxy` whoever is sent takes a place below the target in some pod's inference
    stage, and no pod has fewer than `least_inferring` there. Unless the request `knows_load`, a
    load that it waits for is worth the cost: the decision tells of it.
    """
    if not is_proxied(arrival, models):
        return False
    spec = models[arrival.model].serving
    return least_inferring >= spec.policy.target_ongoing_requests and (
        knows_load or bool(cluster.warm(spec.key)) or not cluster.warming(spec.key)
    )


def _is_shut(failure: LoadFailure, spec: ModelSpec, cluster: ClusterView, now_s: float) -> bool:
    """Whether the last load of this generation failed, it is warm nowhere, and it is too early."""
    if failure.key != spec.key or now_s >= failure.retry_at_s:
        return False
    return not any(residency.is_warm for residency in cluster.holders(spec.key).values())


def _load_failed(failure: LoadFailure, now_s: float) -> Reject:
    return Reject(
        Reason.LOAD_FAILED,
        f"the model could not be loaded ({failure.reason}): {failure.message}",
        retry_after_s=max(1.0, failure.retry_at_s - now_s),
        http_status=failure.http_status,
    )


def _within_deadline(
    decision: Decision,
    request: RequestView,
    deadline_s: float,
    cluster: ClusterView,
    now_s: float,
) -> Decision:
    """Refuse early what cannot be answered in time, on measured forecasts only."""
    left_s = deadline_s - now_s
    if left_s <= 0:
        return Reject(Reason.DEADLINE, "the deadline passed before a pod could take the request")
    if isinstance(decision, Reject):
        return decision
    if isinstance(decision, SendTo):
        forecast = estimate_of(decision, request, cluster, now_s)
    elif decision.forecast is not None:
        forecast = decision.forecast
    else:
        return decision
    if forecast.is_measured and forecast.seconds > left_s:
        return Reject(
            Reason.DEADLINE,
            f"an answer is expected in {forecast.seconds * 1000:.0f} ms, "
            f"the deadline is in {left_s * 1000:.0f} ms",
        )
    return decision
