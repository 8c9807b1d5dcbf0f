"""One routing decision: the model's record, the deadline and the policy put together.

Pure like the policies that it calls; gateway and simulator share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.routing.decision import Decision, Reason, Reject, RequestView, SendTo, Wait
from gateway.routing.latency_model import estimate_of
from gateway.routing.routing_policies import ROUTING_POLICIES
from registry.domain.model import RoutingPolicy
from registry.domain.reservation import LoadMode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from registry.domain.cluster import ClusterState
    from registry.domain.model import LoadFailure, ModelName, ModelRecord, ModelSpec

PROBE_SHARE: Final = 1 / 16
"""Of the requests that are expected to be late."""


@dataclass(slots=True)
class IncomingRequest:
    """A request as it arrived. Times in seconds on the registry's clock."""

    id: str
    model: ModelName
    arrival_s: float
    draw: float
    sequence: int
    policy: RoutingPolicy | None = None
    """The policy that the request's header names; None: the model's."""
    deadline_s: float | None = None
    due_s: float | None = None
    """Soft deadline: after it, a queued request counts as starved, but is not rejected."""


@dataclass(slots=True)
class RoutingResult:
    """A decision with the policy and the model generation it was made for."""

    decision: Decision
    policy: RoutingPolicy | None
    spec: ModelSpec | None
    """None if the model is gone."""


def route_request(
    request: IncomingRequest,
    models: Mapping[ModelName, ModelRecord],
    cluster: ClusterState,
    *,
    now_s: float,
    ahead: int = 0,
    behind: int = 0,
    stalled_s: float = 0.0,
    lost_s: float = 0.0,
    queued: int = 0,
    may_load: bool = True,
) -> RoutingResult:
    """Decide about one request now.

    For `ahead` to `queued` see `RequestView`. Without `may_load`, a request
    that would start a load waits for a load started elsewhere.
    """
    record = models.get(request.model)
    if record is None:
        gone = Reject(Reason.MODEL_GONE, f"model {request.model} does not exist")
        return RoutingResult(gone, request.policy, None)
    spec = record.serving
    policy = request.policy or spec.policy.routing
    if record.failure is not None and _is_backing_off(record.failure, spec, cluster, now_s):
        return RoutingResult(_load_failed(record.failure, now_s), policy, spec)
    view = RequestView(  # by position: names cost a tenth of a decision
        spec.key, request.arrival_s, request.draw, request.sequence,
        spec.policy.target_ongoing_requests, ahead, behind, stalled_s, request.deadline_s,
        lost_s, queued,
    )  # fmt: skip
    decision = ROUTING_POLICIES[policy](view, cluster, now_s)
    if not may_load and isinstance(decision, SendTo) and decision.mode is LoadMode.LOAD:
        decision = Wait(Reason.QUEUE_NO_SLOT)
    if request.deadline_s is not None:
        decision = _within_deadline(decision, view, request.deadline_s, cluster, now_s)
    return RoutingResult(decision, policy, spec)


def uses_remote_proxy(request: IncomingRequest, models: Mapping[ModelName, ModelRecord]) -> bool:
    record = models.get(request.model)
    if record is None:
        return False
    return (request.policy or record.serving.policy.routing) is RoutingPolicy.REMOTE_PROXY


def cannot_be_placed(
    request: IncomingRequest,
    models: Mapping[ModelName, ModelRecord],
    cluster: ClusterState,
    *,
    min_inferring: int,
    has_awaited_tier: bool,
) -> bool:
    """True if `route_request` certainly returns Wait; costs a fraction of a decision.

    Under `remote-proxy` a request needs a pod below the target, and every pod has `min_inferring`
    or more inferences. False if the decision could still set `PendingPlacement.awaited_tier`.
    """
    if not uses_remote_proxy(request, models):
        return False
    spec = models[request.model].serving
    return min_inferring >= spec.policy.target_ongoing_requests and (
        has_awaited_tier or bool(cluster.warm(spec.key)) or not cluster.warming(spec.key)
    )


def _is_backing_off(
    failure: LoadFailure, spec: ModelSpec, cluster: ClusterState, now_s: float
) -> bool:
    """True if the last load of this generation failed recently and no pod is warm."""
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
    view: RequestView,
    deadline_s: float,
    cluster: ClusterState,
    now_s: float,
) -> Decision:
    """The decision, or an early rejection if the deadline is before all that is measured.

    Measurements may be of larger requests, or out of date, and a model that serves nothing gets no
    others: some requests are tried all the same.
    """
    left_s = deadline_s - now_s
    if left_s <= 0:
        return Reject(Reason.DEADLINE, "the deadline passed before a pod accepted the request")
    if isinstance(decision, Reject):
        return decision
    if isinstance(decision, SendTo):
        forecast = estimate_of(decision, view, cluster, now_s)
    elif decision.forecast is not None:
        forecast = decision.forecast
    else:
        return decision
    known_s = forecast.seconds - forecast.guessed_s
    if forecast.is_measured and known_s > left_s and view.draw < 1.0 - PROBE_SHARE:
        return Reject(
            Reason.DEADLINE,
            f"a response is expected in {known_s * 1000:.0f} ms at least, "
            f"the deadline is in {left_s * 1000:.0f} ms",
            options=decision.options,
            loss=decision.loss,
        )
    return decision
