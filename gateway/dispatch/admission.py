"""Whether a request is placed now: its policy's decision, and the guards before and after it.

What the guards remember of a model is one record, which most models lack: their requests are
decided by the policy alone. Each guard says what happens without it. Pure; the clock is passed in.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, Generic

from gateway.dispatch.admission_queue import AdmissionQueue
from gateway.dispatch.pending_placement import P, PendingPlacement, decision_at
from gateway.errors import Rejected
from gateway.routing.auto import run_warm
from gateway.routing.cold_start import ColdStartCredit
from gateway.routing.decision import Decision, Reason, Reject, SendTo, Wait
from gateway.routing.latency_model import PodForecast
from gateway.routing.route_request import (
    IncomingRequest,
    RoutingResult,
    is_plain,
    route_request,
    soonest_in_time,
)
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName
from registry.domain.pod_state import ANY_COPIES, LoadMode, PodState, ProbeBudget

_FIRST_PROBE_S: Final = 1.0
"""From a model's first request with a deadline to its first probe."""


class RequestProbes:
    """Requests with a deadline that try what is expected to be late, or was never measured.

    Without them a model whose measurements are of larger requests, or out of date, serves nothing
    and so gets no others. Limited by the time that they take (`registry.domain.pod_state`).
    """

    def __init__(self) -> None:
        self._late = ProbeBudget(_FIRST_PROBE_S)
        self._transfers = ProbeBudget()

    def begin(self, model: ModelName, now_s: float) -> None:
        """Begin the pause before the model's first late probe, with its first request."""
        self._late.begin(str(model), now_s)

    def may_be_late(self, placement: PendingPlacement, now_s: float) -> bool:
        """Whether the request may be tried although it is expected to miss its deadline."""
        return placement.is_probe or self._late.is_due(str(placement.arrival.model), now_s)

    def may_try_transfer(self, model: ModelName, now_s: float) -> bool:
        """Whether a request may be proxied although the model's transfers were never measured.

        One that ends after its deadline measures nothing, and the next would do the same.
        """
        return self._transfers.is_due(str(model), now_s)

    def count(self, placement: PendingPlacement, result: RoutingResult, now_s: float) -> None:
        """Count a probe once, also if it is queued before it is sent."""
        request, decision = placement.arrival, result.decision
        if request.deadline_s is None or not isinstance(decision, SendTo | Wait):
            return
        if result.is_probe and not placement.is_probe:
            placement.is_probe = True
            self._late.spend(str(request.model), now_s, result.cost_s)
        forecast, is_remote = decision.forecast, decision.reason is Reason.WARM_REMOTE
        if is_remote and forecast is not None and not forecast.is_measured:
            self._transfers.spend(str(request.model), now_s, request.deadline_s - now_s)


HEADROOM: Final = 4
"""Of so many slots one is left to others: none of fewer."""
RECENT_S: Final = 10.0
"""How long ago another tenant's last request may have arrived."""
MAX_AGE_S: Final = 0.02
"""Of a refusal, also without a change: forecasts change with time alone."""
NOTABLE_SHARE: Final = 0.05
"""Of a queue: while less of it has left, a refusal holds whatever else changes. The queue refills
as soon as it no longer holds, long before the pods run out of requests."""
MAX_MODELS: Final = 4096
"""With a record; above this number, the oldest one is dropped."""

OnRouted = Callable[["IncomingRequest", RoutingResult, "ClusterState", float], None]


@dataclass(frozen=True, slots=True)
class Refusal:
    result: RoutingResult
    error: Rejected
    """Never raised itself, so that it keeps no traceback: raise copies."""
    left_s: float
    """What that request had until its deadline; infinite without one."""
    until_s: float
    least_queued: int
    """It holds while as many requests of the model are queued; 0: until anything changes."""


@dataclass(slots=True)
class ModelGuards:
    """What is special about the requests of one model."""

    credit: ColdStartCredit | None = None
    refusals: dict[tuple[object, ...], Refusal] = field(default_factory=dict)
    """The latest of each kind of request."""


class Admission(Generic[P]):
    """Decides about requests. `state` must not change during a call."""

    def __init__(
        self, state: ClusterState, queue: AdmissionQueue[P], on_routed: OnRouted, *, may_load: bool
    ) -> None:
        self._state = state
        self._queue = queue
        self._on_routed = on_routed
        self._may_load = may_load
        self.records: dict[ModelName, ModelGuards] = {}
        """Of models that are not decided by their policy alone."""
        self.refused: set[ModelName] = set()
        """Those with refusals."""
        self._tenants = RecentTenants()
        self._probes = RequestProbes()

    # Decisions

    def decide(self, placement: P, now_s: float) -> RoutingResult:
        """About a new request, which comes after the queued requests of its model."""
        request, queue, state = placement.arrival, self._queue, self._state
        model = request.model
        self._tenants.record(model.namespace, now_s)
        result = None
        is_special = placement.place_at or placement.only is not None or request.prompt is not None
        if not (queue.waiting or is_special or model in self.records):
            result = self._decide_plain(placement, now_s)
        if result is None:
            ahead = queue.ahead_of(request) if queue.waiting else 0
            result = self._route(placement, now_s, ahead, 0)
        if placement.direct_tries == 1 and result.spec is not None:
            state.arrivals.record(result.spec.key, now_s)
        if result.decision.loss is not None or self.records:
            self._record_loss(model, result.decision, now_s)
        return result

    def _decide_plain(self, placement: P, now_s: float) -> RoutingResult | None:
        """As `_route`, in a fraction of its time, where only a warm pod comes into question."""
        request, state = placement.arrival, self._state
        record = state.models.get(request.model)
        if record is None or request.policy is not None or not is_plain(record.serving):
            return None
        spec = placement.spec = record.serving
        found = self.decide_warm(
            request.model, spec.key, request.size_class, request.deadline_s, now_s
        )
        if found is None:
            return None
        result = RoutingResult(run_warm(found), spec.policy.routing, spec, is_plain=True)
        self._on_routed(request, result, state, now_s)
        return result

    def decide_warm(
        self,
        model: ModelName,
        key: str,
        size_class: int | None,
        deadline_s: float | None,
        now_s: float,
    ) -> PodForecast | None:
        """The pod for a new request to a model that `is_plain`; None: `decide` about it."""
        if self._queue.waiting or (self.records and model in self.records):
            return None
        self._tenants.record(model.namespace, now_s)
        if deadline_s is not None:
            self._probes.begin(model, now_s)
            if not self._probes.may_try_transfer(model, now_s):
                return None
        found = soonest_in_time(key, size_class, deadline_s, self._state, now_s)
        if found is None or (
            self._tenants.has_other(model.namespace, now_s)
            and _holds_most(found.pod, model.namespace)
        ):
            return None
        return found

    def decide_queued(self, placement: P, now_s: float, behind: int = 0) -> Decision:
        """About one that waits."""
        decision = self._route(placement, now_s, 0, behind).decision
        if self.records and isinstance(decision, SendTo):
            self._settle(placement.arrival.model, decision)
        return decision

    def allows_planned(self, placement: P, decision: SendTo, now_s: float) -> bool:
        """Whether a new request may take what a plan has chosen for it."""
        request = placement.arrival
        result = RoutingResult(decision, None, placement.spec)
        self._on_routed(request, result, self._state, now_s)
        self._tenants.record(request.model.namespace, now_s)
        self._state.arrivals.record(placement.spec.key, now_s)
        return not self._leaves_slot(request.model.namespace, decision, now_s)

    def _route(self, placement: P, now_s: float, ahead: int, behind: int) -> RoutingResult:
        only, pods = placement.only, self._state.pods.values()
        if only is None:
            return self._route_to_any(placement, now_s, ahead, behind)
        if not any(pod.is_accepting for pod in pods if pod.address in only):
            message = f"none of the {len(only)} endpoints of the proxy's subset is ready"
            return RoutingResult(Reject(Reason.NO_PODS, message, retry_after_s=1.0), None, None)
        apart = [pod for pod in pods if pod.address not in only and not pod.is_suspect]
        for pod in apart:
            pod.set_suspect(is_suspect=True)
        try:
            result = self._route_to_any(placement, now_s, ahead, behind)
            if isinstance(result.decision, SendTo):  # copies elsewhere do not count
                result.decision = replace(result.decision, max_other_copies=ANY_COPIES)
            return result
        finally:
            for pod in apart:
                pod.set_suspect(is_suspect=False)

    def _route_to_any(self, placement: P, now_s: float, ahead: int, behind: int) -> RoutingResult:
        request, state, queue = placement.arrival, self._state, self._queue
        probes = None if request.deadline_s is None else self._probes
        result = route_request(
            request,
            state.models,
            state,
            now_s=now_s,
            ahead=ahead,
            behind=behind,
            stalled_s=queue.stalled_s(request.model, now_s) if queue.waiting else 0.0,
            lost_s=self.credit_s(request.model, now_s) if self.records else 0.0,
            queued=queue.size if queue.waiting else 0,
            may_load=self._may_load,
            may_probe=probes is not None and probes.may_be_late(placement, now_s),
            may_try_transfer=probes is None or probes.may_try_transfer(request.model, now_s),
        )
        if probes is not None:
            probes.count(placement, result, now_s)
        spec, decision = result.spec, result.decision
        if spec is not None:
            placement.spec = spec
            if placement.place_at:
                decision = decision_at(placement.place_at, spec.key, decision, state)
        if self._leaves_slot(request.model.namespace, decision, now_s):
            decision = Wait(Reason.QUEUE_NO_SLOT)
        result.decision = decision
        self._on_routed(request, result, self._state, now_s)
        return result

    def _leaves_slot(self, tenant: str, decision: Decision, now_s: float) -> bool:
        """Whether the tenant holds most of the pod's slots, and may not take one of the last.

        A request that finds no free slot waits for the end of a batch, and then at the device for
        the next one, which began before it arrived. Without this, a tenant with many requests makes
        those of all others wait so.
        """
        if not self._tenants.has_other(tenant, now_s) or not isinstance(decision, SendTo):
            return False
        pod = self._state.pods.get(decision.entry) if decision.takes_slot else None
        return pod is not None and _holds_most(pod, tenant)

    # What is remembered of models

    def refused_like_another(self, placement: P, now_s: float) -> Rejected | None:
        """The error of a new request that is no better off than one just refused.

        Where a queue is full, or too long for a deadline, thousands of requests in a second would
        ask the policy the same: without this, refusals take the time that decisions need.
        """
        request = placement.arrival
        record = self.records.get(request.model)
        if record is None or placement.place_at or placement.direct_tries:
            return None
        if placement.only is not None:
            return None
        known = record.refusals.get(_kind(request))
        if known is None or self._queue.depth_of(request.model) < known.least_queued:
            return None
        if not 0 <= known.until_s - now_s <= MAX_AGE_S or _left_s(request, now_s) > known.left_s:
            return None
        result = known.result
        assert result.spec is not None
        self._tenants.record(request.model.namespace, now_s)
        self._state.arrivals.record(result.spec.key, now_s)
        self._record_loss(request.model, result.decision, now_s)
        if isinstance(result.decision, Wait):
            placement.policy = result.policy
        self._on_routed(request, result, self._state, now_s)
        return known.error.copy()

    def keep_refusal(
        self, placement: P, result: RoutingResult, error: Rejected, now_s: float
    ) -> None:
        """Refuse those like it, too: until something changes, or the queue is notably shorter."""
        request = placement.arrival
        if result.spec is None or placement.place_at or placement.only is not None:
            return
        queued = self._queue.depth_of(request.model)
        notable = int(queued * NOTABLE_SHARE)
        self._record(request.model).refusals[_kind(request)] = Refusal(
            result,
            error.copy(),
            _left_s(request, now_s),
            now_s + MAX_AGE_S,
            queued - notable if notable else 0,
        )
        self.refused.add(request.model)

    def note_change(self, now_s: float) -> None:
        """Forget refusals that hold until something changes, and old ones."""
        for model in list(self.refused):
            record = self._record(model)
            record.refusals = {
                kind: known
                for kind, known in record.refusals.items()
                if known.least_queued and now_s <= known.until_s
            }
            if not record.refusals:
                self.refused.discard(model)
                if record.credit is None:
                    del self.records[model]

    def credit_s(self, model: ModelName, now_s: float) -> float:
        """Time that the model's requests have lost for lack of another copy (`ski_rental`).

        Without it, requests that wait a little each never lead to the load that would spare them.
        """
        record = self.records.get(model)
        if record is None or record.credit is None:
            return 0.0
        record.credit.advance(now_s)
        return record.credit.counted_s

    def _record_loss(self, model: ModelName, decision: Decision, now_s: float) -> None:
        """Add what a new request loses by this decision, at least; a load resets the credit."""
        self._settle(model, decision)
        if (loss := decision.loss) is not None:
            record = self._record(model)
            if record.credit is None:
                record.credit = ColdStartCredit(now_s, loss.load_s)
            record.credit.add(loss, now_s)

    def _settle(self, model: ModelName, decision: Decision) -> None:
        """Reset the credit if the decision is a load."""
        if isinstance(decision, SendTo) and decision.mode is LoadMode.LOAD:
            record = self.records.get(model)
            if record is not None:
                record.credit = None
                if not record.refusals:
                    del self.records[model]

    def _record(self, model: ModelName) -> ModelGuards:
        record = self.records.get(model)
        if record is None:
            if len(self.records) >= MAX_MODELS:
                del self.records[next(iter(self.records))]
            record = self.records[model] = ModelGuards()
        return record


def _holds_most(pod: PodState, tenant: str) -> bool:
    """Whether few slots are left of which the tenant has most."""
    if pod.slots - pod.slots_busy > pod.slots // HEADROOM:
        return False
    prefix = f"{tenant}/"
    return 2 * sum([each.key.startswith(prefix) for each in pod.work.holders]) >= pod.slots


def _kind(request: IncomingRequest) -> tuple[object, ...]:
    return request.policy, request.size_class, request.deadline_s is None


def _left_s(request: IncomingRequest, now_s: float) -> float:
    return inf if request.deadline_s is None else request.deadline_s - now_s


class RecentTenants:
    """When a tenant other than a given one last sent a request: the last two tenants suffice."""

    def __init__(self) -> None:
        self._last = ""
        self._last_s = -inf
        self._other_s = -inf
        """Of the last tenant before `_last`."""

    def record(self, tenant: str, now_s: float) -> None:
        if tenant != self._last:
            self._other_s = self._last_s
            self._last = tenant
        self._last_s = now_s

    def has_other(self, tenant: str, now_s: float) -> bool:
        """Whether another tenant has sent a request lately, by a clock that may be set back."""
        other_s = self._other_s if tenant == self._last else self._last_s
        return abs(now_s - other_s) <= RECENT_S
