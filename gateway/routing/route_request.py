"""One routing decision: the model's record, the deadline and the policy put together.

Pure like the policies that it calls; gateway and simulator share it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.routing.auto import certain_pod
from gateway.routing.decision import (
    ColdStartLoss,
    Decision,
    LatencyEstimate,
    Reason,
    Reject,
    RequestView,
    SendTo,
    Wait,
)
from gateway.routing.latency_model import PodForecast, estimate_of
from gateway.routing.routing_policies import colocation_queueing, routing_policy
from registry.domain.canaries import TOTAL_PERCENT, Canary
from registry.domain.cluster import ClusterState
from registry.domain.device_backlog import is_idle
from registry.domain.estimates import MAX_AGE_S, generation_bytes, size_class
from registry.domain.model import LoadFailure, ModelName, ModelRecord, ModelSpec, RoutingPolicy
from registry.domain.pod import PodPhase
from registry.domain.pod_state import LoadMode
from registry.domain.prompt_prefixes import Prompt
from registry.inference_service.predictors import unmet_needs

CONTESTED_MARGIN: Final = 2.0
"""Of a request that takes a busy warm pod's slot from queued ones: how many times as long as
forecast it must have until its deadline. What is sent later than that often ends just too late, and
keeps the slot until then. Simulated at 2 to 10 times one pod's capacity, goodput is 0.63 to 0.91 of
the capacity with 1, 0.91 to 1.02 with 1.5, 0.97 to 1.08 with 2."""


@dataclass(slots=True)
class IncomingRequest:
    """A request as it arrived. Times in seconds on the registry's clock."""

    id: str
    model: ModelName
    arrival_s: float
    draw: float
    sequence: int
    policy: str | None = None
    """The policy that the request's header names; None: the model's."""
    deadline_s: float | None = None
    due_s: float | None = None
    """Soft deadline, of applications: after it, a queued request gives way, but is not rejected."""
    size_class: int | None = None
    """Of its body (`registry.domain.estimates`); None: not known."""
    load_failed: bool = False
    """A load for it has failed: while a pod is warm, it waits for no other."""
    prompt: Prompt | None = None
    """Of a text generation; else None. Set by `take_prompt`."""

    def take_prompt(self, prompt: Prompt | None, body_bytes: int) -> None:
        self.prompt = prompt
        if prompt is not None:
            self.size_class = size_class(generation_bytes(body_bytes, prompt.new_tokens))


@dataclass(slots=True)
class RoutingResult:
    """A decision with the policy and the model generation it was made for."""

    decision: Decision
    policy: str | None
    spec: ModelSpec | None
    """None if the model is gone."""
    is_probe: bool = False
    """It is expected to be late, and tried all the same."""
    cost_s: float = 0.0
    """Of a probe: what it is expected to take of a device."""
    view: RequestView | None = None
    """What the policy saw of the request; None: nothing, or not more than `is_plain` says."""
    is_plain: bool = False
    """Of `soonest_in_time`."""


def is_plain(spec: ModelSpec) -> bool:
    """Whether `soonest_in_time` may decide, as `route_request` would where no request is queued.

    A failed load changes nothing for a warm model.
    """
    return not spec.needs and spec.policy.routing == RoutingPolicy.AUTO


def soonest_in_time(
    key: str, size_class: int | None, deadline_s: float | None, cluster: ClusterState, now_s: float
) -> PodForecast | None:
    """As `certain_pod`, unless the response is known to come after the deadline."""
    found = certain_pod(key, size_class, deadline_s, cluster, now_s)
    if deadline_s is not None and found is not None:
        known_s = found.seconds - found.guessed_s if found.is_measured else 0.0
        if known_s >= deadline_s - now_s:
            return None
    return found


def view_of(
    request: IncomingRequest,
    spec: ModelSpec,
    ahead: int = 0,
    behind: int = 0,
    stalled_s: float = 0.0,
    lost_s: float = 0.0,
    queued: int = 0,
    *,
    may_try_transfer: bool = True,
) -> RequestView:
    return RequestView(  # by position: names cost a tenth of a decision
        spec.key,
        request.arrival_s,
        request.draw,
        request.sequence,
        spec.policy.target_ongoing_requests,
        ahead,
        behind,
        stalled_s,
        request.deadline_s,
        lost_s,
        queued,
        request.size_class,
        spec.policy.max_load_wait_s,
        may_try_transfer,
    )


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
    may_probe: bool = False,
    may_try_transfer: bool = True,
) -> RoutingResult:
    """Decide about one request now.

    For `ahead` to `queued` see `RequestView`. Without `may_load`, a request
    that would start a load waits for a load started elsewhere; without `may_probe` it is rejected
    if it is expected to be late; for `may_try_transfer` see `RequestView`.
    """
    record = models.get(request.model)
    if record is None:
        gone = Reject(Reason.MODEL_GONE, f"model {request.model} does not exist")
        return RoutingResult(gone, request.policy, None)
    spec = record.serving
    policy = request.policy or spec.policy.routing
    if spec.needs and (needs := unmet_needs(spec, cluster)):
        message = f"model {request.model} cannot be served here: {needs}"
        reason = Reason.MODEL_STOPPED if spec.is_stopped else Reason.NO_SUPPORTING_RUNTIME
        return RoutingResult(Reject(reason, message), policy, spec)
    avoids_load = request.load_failed
    failure = record.failure
    if failure is not None and failure.key == spec.key and now_s < failure.retry_at_s:
        if not _is_warm_at_ready_pod(spec, cluster):
            return RoutingResult(_load_failed(failure, now_s), policy, spec)
        avoids_load, may_load = True, False  # it waits for a suspect pod
    view = view_of(
        request, spec, ahead, behind, stalled_s, lost_s, queued, may_try_transfer=may_try_transfer
    )
    if request.prompt is not None:
        view.promptless_class = size_class(generation_bytes(0, request.prompt.new_tokens))
        view.cached = cluster.prefixes.find(spec.key, request.prompt, cluster.holders(spec.key))
    decision = routing_policy(policy)(view, cluster, now_s)
    if isinstance(decision, SendTo) and decision.mode is not LoadMode.WARM:
        if avoids_load and cluster.warm(spec.key):
            decision = colocation_queueing(view, cluster, now_s)
        elif not may_load and decision.mode is LoadMode.LOAD:
            decision = Wait(Reason.QUEUE_NO_SLOT)
    result = RoutingResult(decision, policy, spec, view=view)
    if request.deadline_s is not None:
        _reject_if_late(result, view, request.deadline_s, cluster, now_s, may_probe=may_probe)
    return result


def _is_warm_at_ready_pod(spec: ModelSpec, cluster: ClusterState) -> bool:
    """Whether a pod serves the model now, or, if it is suspect, in a moment."""
    pods = cluster.pods  # a holder's own record may come later
    return any(
        residency.is_warm and name in pods and pods[name].phase is PodPhase.READY
        for name, residency in cluster.holders(spec.key).items()
    )


def _load_failed(failure: LoadFailure, now_s: float) -> Reject:
    return Reject(
        Reason.LOAD_FAILED,
        f"the model could not be loaded ({failure.reason}): {failure.message}",
        retry_after_s=None if failure.is_permanent else max(1.0, failure.retry_at_s - now_s),
        http_status=failure.http_status,
    )


def _reject_if_late(
    result: RoutingResult,
    view: RequestView,
    deadline_s: float,
    cluster: ClusterState,
    now_s: float,
    *,
    may_probe: bool,
) -> None:
    """Replace the decision by an early rejection if the deadline is before all that is measured.

    Measurements may be of larger requests, or out of date, and a model that serves nothing gets no
    others: some requests are tried all the same. A load that has a price is not: it is started as
    soon as what others gain, and what earlier rejections lost, pays for it.
    """
    decision, left_s = result.decision, deadline_s - now_s
    if left_s <= 0:
        message = "the deadline passed before a pod accepted the request"
        result.decision = Reject(Reason.DEADLINE, message)
        return
    if isinstance(decision, Reject):
        return
    if isinstance(decision, SendTo):
        forecast = estimate_of(decision, view, cluster, now_s)
    elif decision.forecast is not None:
        forecast = decision.forecast
    else:
        return
    if not forecast.is_measured:
        return
    known_s = _needed_s(decision, forecast, view.queued, cluster)
    is_investment = decision.is_investment if isinstance(decision, SendTo) else None
    if known_s <= left_s or is_investment:
        return
    if is_investment is None:
        if now_s - cluster.measurements.sampled_s(view.key) > MAX_AGE_S:
            return
        if may_probe:
            result.is_probe = True
            result.cost_s = cluster.measured(view.key).stages_of(view.size_class).infer_s
            return
    result.decision = Reject(
        Reason.DEADLINE,
        f"a response is expected in {known_s * 1000:.0f} ms at least, "
        f"the deadline is in {left_s * 1000:.0f} ms",
        options=decision.options,
        loss=_rejection_loss(decision, left_s),
    )


def _rejection_loss(decision: SendTo | Wait, left_s: float) -> ColdStartLoss | None:
    """What is lost for lack of a copy counts towards its load (`ski_rental`)."""
    is_load = isinstance(decision, SendTo) and decision.mode is LoadMode.LOAD
    if decision.forecast and (is_load or decision.reason is Reason.QUEUE_MEMORY):
        return ColdStartLoss(left_s, decision.forecast.seconds)
    return decision.loss


def _needed_s(
    decision: SendTo | Wait, forecast: LatencyEstimate, queued: int, cluster: ClusterState
) -> float:
    """Time that a request is known to need; more of one that takes a slot from queued ones."""
    if (
        queued > 1
        and isinstance(decision, SendTo)
        and decision.mode is LoadMode.WARM
        and not is_idle(cluster.pods[decision.predict])
    ):
        return CONTESTED_MARGIN * forecast.seconds
    return forecast.seconds - forecast.guessed_s


def select_version(
    requested: ModelName, canaries: Sequence[Canary], request_id: str, state: ClusterState
) -> ModelName:
    """The model that serves the request; each canary gets its percentage of all request ids.

    The requested model serves it if the selected canary is unknown or cannot be loaded.
    """
    selected = split_by_id(requested, canaries, request_id)
    record = state.models.get(selected)
    return selected if record is not None and can_be_served(record, state) else requested


def split_by_id(requested: ModelName, canaries: Sequence[Canary], request_id: str) -> ModelName:
    """The version that a request id belongs to, at every gateway.

    A canary keeps its ids when its percentage grows.
    """
    digest = hashlib.blake2b(f"{requested}\0{request_id}".encode(), digest_size=8).digest()
    point = TOTAL_PERCENT * (int.from_bytes(digest, "big") / (1 << 64))
    for canary in canaries:
        if point < canary.percent:
            return canary.model
        point -= canary.percent
    return requested


def can_be_served(record: ModelRecord, state: ClusterState) -> bool:
    """True if a model is warm somewhere, or pods can serve it and its last load did not fail."""
    if unmet_needs(record.serving, state):
        return False
    if any(residency.is_warm for residency in state.holders(record.serving.key).values()):
        return True
    return record.failure is None or record.failure.key != record.serving.key
