"""The latest routing decisions, their options and candidate pods, for `pilotlight explain`.

Fixed policies compare nothing, `auto` nothing where a warm pod is certain to win. Then the ways are
the options of `auto` at the same moment, and others where it needed no more than one. The way taken
has `auto`'s price where `auto` considers the same pods, else its own time and delays alone.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gateway.routing.auto import auto, run_here, run_warm
from gateway.routing.cold_start import cold_start
from gateway.routing.decision import (
    Decision,
    LatencyEstimate,
    Reason,
    Reject,
    RequestView,
    RoutingOption,
    SendTo,
    Wait,
)
from gateway.routing.latency_model import PodForecast, estimate_of
from gateway.routing.pod_selection import run_soonest
from gateway.routing.route_request import IncomingRequest, RoutingResult, view_of
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec
from registry.domain.pod_index import Residency
from registry.domain.pod_state import LoadMode, PodState


def ways(
    decision: Decision, request: RequestView, cluster: ClusterState, now_s: float
) -> tuple[RoutingOption, ...]:
    """The way that `decision` takes, and those that `auto` would have compared.

    No later decision differs for it.
    """
    with cluster.eviction_prices.held():
        weighed = auto(request, cluster, now_s)
        options = weighed.options
        if not options and isinstance(weighed, SendTo):
            taken = _way(weighed, request, cluster, now_s)
            options = (taken, *_beside(taken, request, cluster, now_s))
        if not isinstance(decision, SendTo):
            return options
        pods = (decision.entry, decision.predict)
        same = [each for each in options if (each.entry, each.predict) == pods]
        others = tuple(each for each in options if (each.entry, each.predict) != pods)
        taken = (
            replace(same[0], reason=decision.reason)
            if same
            else _way(decision, request, cluster, now_s)
        )
        return (taken, *others)


def _beside(
    taken: RoutingOption, request: RequestView, cluster: ClusterState, now_s: float
) -> list[RoutingOption]:
    """Another pod that has the model, and a load at one that has not, where there are."""
    serving, found = cluster.residency.serving(request.key), []
    others = [pod for pod in serving.warm if pod.name != taken.predict]
    if soonest := run_soonest(others, request, cluster, now_s):
        found.append(run_here("colocate", soonest, Reason.WARM, LoadMode.WARM))
    if serving.may_be_more:
        cold = cold_start(request, cluster, serving.warm, serving.warming, now_s)
        found += [cold] if cold else []
    return found


def _way(
    decision: SendTo, request: RequestView, cluster: ClusterState, now_s: float
) -> RoutingOption:
    """Without what it costs others, which only `auto` prices."""
    forecast = estimate_of(decision, request, cluster, now_s)
    residency = cluster.holders(request.key).get(decision.predict)
    name = "cold start"
    if decision.entry != decision.predict:
        name = "proxy"
    elif residency is not None and residency.is_warm:
        name = "colocate"
    elif residency is not None and residency.is_warming:
        name = "join"
    return _option_of(decision, forecast, name)


MAX_EXPLANATIONS: Final = 4096
MAX_WEIGHED: Final = 10
"""Requests at once that were decided without a comparison and whose ways are weighed for their
explanation: that takes longer than their decision. Of further ones only the decision is kept."""
_WEIGH_EVERY_S: Final = 0.02
"""After which another one is weighed."""
_SAME_S: Final = 0.001
_MAX_CANDIDATES: Final = 32
_MAX_APPLICATIONS: Final = 256
_COSTS: Final = ("delays_s", "evicts_s", "leaves_s", "credit_s", "cost_s")
_SENT: Final[Mapping[Reason, str]] = {
    Reason.WARM: "warm at {predict}",
    Reason.WARM_REMOTE: "warm at {predict}, which infers; {entry} prepares the request",
    Reason.WARMING: "being loaded at {predict}, where the request waits for it",
    Reason.WARMING_REMOTE: "being loaded at {predict}, which infers; {entry} prepares the request",
    Reason.COLD: "loaded at {predict}, as no pod has it on its device",
    Reason.COLD_WARM_BUSY: "loaded at {predict} as well, as the pods that have it are busy",
    Reason.BATCH_TURN: "in the batch of {predict}, whose turn it is",
    Reason.MODEL_OBLIVIOUS: "sent to {predict} by a policy that does not look at models",
}
_WAITS: Final[Mapping[Reason, str]] = {
    Reason.QUEUE_WARM_BUSY: "waits for a slot at a pod that has the model on its device",
    Reason.QUEUE_WARMING: "waits for a load in progress",
    Reason.QUEUE_NO_SLOT: "waits, as no pod has a free slot",
    Reason.QUEUE_TARGET: "waits, as inference at the pods with free slots has reached its target",
    Reason.QUEUE_MEMORY: "waits, as loads in progress take the memory of pods with free slots",
    Reason.NO_PODS: "waits, as no pod accepts requests",
}


@dataclass(slots=True)
class _Explanation:
    request: IncomingRequest
    result: RoutingResult
    pods: list[tuple[str, int, int, int, bool]]
    """Candidates when the decision was made: name, slots taken, slots, requests inferring,
    accepting."""
    holders: Mapping[str, Residency]
    options: tuple[RoutingOption, ...]
    wait_reasons: list[str] = field(default_factory=list)


_Seen = tuple[list[tuple[str, int, int, int, bool]], Mapping[str, Residency]]
_Taken = tuple[ModelName, ModelSpec, PodForecast, _Seen]
"""Of one of many requests that were decided without a comparison: from these values its explanation
is made if somebody asks."""


class Explanations:
    """Decisions by request id; above `max_explanations` the older half is dropped."""

    def __init__(self, max_explanations: int = MAX_EXPLANATIONS, *, gateway: str = "") -> None:
        self.gateway = gateway
        """Name of this gateway; the others of its pool have records of their own."""
        self._max_explanations = max_explanations
        self._refilled_s = -1.0
        self._left = 0
        """Requests, as of `_refilled_s`."""
        self._by_id: dict[str, _Explanation | _Taken] = {}
        self._older: dict[str, _Explanation | _Taken] = {}
        """Half of all: to forget them at once costs less than each by itself."""
        self._seen: dict[str, _Seen] = {}
        """By model key: pods and holders, as the first decision of this millisecond saw them."""
        self._seen_s = 0.0
        self._selections: dict[str, Callable[[], dict[str, Any]]] = {}
        self.latest_selections: dict[str, str] = {}
        """By application: the id of the last request whose variant was chosen in a window."""

    def record(
        self, request: IncomingRequest, result: RoutingResult, state: ClusterState, now_s: float
    ) -> None:
        """Record a decision, unless the request already waits for the same reason."""
        known = self._by_id.get(request.id) or self._older.get(request.id)
        if not isinstance(known, _Explanation) or known.request is not request:
            known = None  # another request with the same id
        decision = result.decision
        wait_reasons = known.wait_reasons if known else []
        if isinstance(decision, Wait):
            if wait_reasons and wait_reasons[-1] == decision.reason:
                return
            wait_reasons.append(decision.reason)
        holders = dict(state.holders(result.spec.key)) if result.spec else {}
        pods = [_counts(pod) for pod in _candidates(state, decision, holders)]
        options = self._options(request, result, state, now_s)
        self._put(request.id, _Explanation(request, result, pods, holders, options, wait_reasons))

    def _put(self, request_id: str, explanation: _Explanation | _Taken) -> None:
        if len(self._by_id) >= self._max_explanations // 2:
            self._older, self._by_id = self._by_id, {}
        self._by_id[request_id] = explanation

    def record_warm(
        self,
        request_id: str,
        model: ModelName,
        spec: ModelSpec,
        forecast: PodForecast,
        state: ClusterState,
        now_s: float,
    ) -> None:
        """Record the decision of `decide_warm`, with the other ways only if there is time."""
        if self._weighable(now_s):
            request = IncomingRequest(request_id, model, now_s, 0.0, 0)
            decision = run_warm(forecast)
            result = RoutingResult(decision, spec.policy.routing, spec, is_plain=True)
            self.record(request, result, state, now_s)
            return
        if not 0 <= now_s - self._seen_s < _SAME_S:
            self._seen_s, self._seen = now_s, {}
        seen = self._seen.get(spec.key)
        if seen is None:
            holders = dict(state.holders(spec.key))
            pods = _candidates(state, run_warm(forecast), holders)
            seen = self._seen[spec.key] = ([_counts(pod) for pod in pods], holders)
        self._put(request_id, (model, spec, forecast, seen))

    def _options(
        self, request: IncomingRequest, result: RoutingResult, state: ClusterState, now_s: float
    ) -> tuple[RoutingOption, ...]:
        """Those that the policy compared; for one that compares none, the ways there were."""
        decision, view, spec = result.decision, result.view, result.spec
        if decision.options:
            return decision.options
        if (view or result.is_plain) and spec and self._weighable(now_s):
            self._left -= 1
            return ways(decision, view or view_of(request, spec), state, now_s)
        if isinstance(decision, SendTo) and decision.forecast is not None:
            return (_option_of(decision, decision.forecast),)
        return ()

    def _weighable(self, now_s: float) -> int:
        """How many requests may be weighed now; by a clock that may be set back."""
        passed_s = now_s - self._refilled_s
        if not 0 <= passed_s < _WEIGH_EVERY_S:
            more = max(1, int(passed_s / _WEIGH_EVERY_S))
            self._refilled_s, self._left = now_s, min(MAX_WEIGHED, self._left + more)
        return self._left

    def record_selection(
        self, application: str, request_id: str, explain: Callable[[], dict[str, Any]]
    ) -> None:
        """Record how the variant of an application's request was chosen; `explain` gives JSON."""
        self.latest_selections.pop(application, None)
        if len(self.latest_selections) >= _MAX_APPLICATIONS:
            del self.latest_selections[next(iter(self.latest_selections))]
        self.latest_selections[application] = request_id
        if len(self._selections) >= self._max_explanations:
            del self._selections[next(iter(self._selections))]
        self._selections[request_id] = explain

    def get(self, request_id: str) -> dict[str, Any] | None:
        """The explanation of one request as JSON; None if it is unknown or was dropped."""
        known = self._by_id.get(request_id) or self._older.get(request_id)
        if isinstance(known, tuple):
            known = _explanation(request_id, known)
        explain = self._selections.get(request_id)
        chosen = {} if explain is None else {"selection": explain()}
        if known is None:
            return {"request_id": request_id, **chosen} if chosen else None
        cached = (known.result.view and known.result.view.cached) or {}
        return {
            "request_id": request_id,
            "gateway": self.gateway,
            **chosen,
            "model": str(known.request.model),
            "policy": known.result.policy,
            "summary": decision_text(known.result.decision, known.options),
            "decision": _decision(known.result.decision),
            "waited_for": known.wait_reasons,
            "cached": {pod: round(share, 4) for pod, share in cached.items()},
            "options": [_option(each) for each in known.options],
            "candidates": [_candidate(pod, known.holders) for pod in known.pods],
        }


def find_explanation(
    explanations: Iterable[Explanations], request_id: str, namespaces: Collection[str] | None
) -> dict[str, Any]:
    """The request's, if model and application are of these namespaces; None: of any. Else empty.

    Clients choose ids: requests of two tenants may have the same one.
    """
    for each in explanations:
        found = each.get(request_id)
        if found is not None and (namespaces is None or _is_within(found, namespaces)):
            return found
    return {}


def _is_within(explanation: Mapping[str, Any], namespaces: Collection[str]) -> bool:
    names = (explanation.get("model"), explanation.get("selection", {}).get("application"))
    return all(name is None or name.partition("/")[0] in namespaces for name in names)


def _candidates(
    state: ClusterState, decision: SendTo | Wait | Reject, holders: Mapping[str, Residency]
) -> list[Any]:
    if len(state.pods) <= _MAX_CANDIDATES:
        return list(state.pods.values())
    names = list(holders)[:_MAX_CANDIDATES]
    if isinstance(decision, SendTo):
        names += [decision.entry, decision.predict]
    return [state.pods[name] for name in dict.fromkeys(names) if name in state.pods]


def _counts(pod: PodState) -> tuple[str, int, int, int, bool]:
    return pod.name, pod.slots_busy, pod.slots, pod.inferring, pod.is_accepting


def _explanation(request_id: str, taken: _Taken) -> _Explanation:
    model, spec, forecast, (pods, holders) = taken
    decision = run_warm(forecast)
    result = RoutingResult(decision, spec.policy.routing, spec, is_plain=True)
    options = (_option_of(decision, forecast),)
    request = IncomingRequest(request_id, model, 0.0, 0.0, 0)
    return _Explanation(request, result, pods, holders, options)


def _decision(decision: SendTo | Wait | Reject) -> dict[str, Any]:
    match decision:
        case SendTo():
            return {
                "action": "send",
                "reason": decision.reason,
                "entry": decision.entry,
                "predict": decision.predict,
                "mode": decision.mode,
                **_forecast(decision.forecast),
            }
        case Wait():
            return {"action": "wait", "reason": decision.reason, **_forecast(decision.forecast)}
        case Reject():
            return {"action": "reject", "reason": decision.reason, "message": decision.message}


def _option(option: RoutingOption) -> dict[str, Any]:
    return {
        "way": option.name,
        "entry": option.entry,
        "predict": option.predict,
        **_forecast(option.forecast),
        **{name: round(getattr(option, name), 6) + 0.0 for name in _COSTS},  # no negative zero
    }


def _option_of(
    decision: SendTo, forecast: LatencyEstimate, name: str = "colocate"
) -> RoutingOption:
    """The way that was taken; without a comparison, `auto` took a pod that has the model."""
    places = decision.reason, decision.entry, decision.predict, decision.mode
    return RoutingOption(name, forecast, *places, delays_s=forecast.delays_s)


def _forecast(forecast: LatencyEstimate | None) -> dict[str, Any]:
    if forecast is None:
        return {}
    return {"expected_s": round(forecast.seconds, 6), "measured": forecast.is_measured}


def _candidate(
    pod: tuple[str, int, int, int, bool], holders: Mapping[str, Residency]
) -> dict[str, Any]:
    name, busy, slots, inferring, accepting = pod
    residency = holders.get(name)
    return {
        "pod": name,
        "tier": residency.tier if residency else "remote",
        "loading_from": residency.loading_from if residency else None,
        "slots_used": busy,
        "slots": slots,
        "ongoing": inferring,
        "accepting": accepting,
    }


def decision_text(decision: Decision, options: Sequence[RoutingOption] = ()) -> str:
    """A decision as one sentence: what was done, why, how long it should take, the next best.

    Such as `warm at pod-3: 21 ms expected; next best: cold start at pod-1, 480 ms more in all`; of
    a rejection its message. `options`: the ways, if not the decision's.
    """
    options = options or decision.options
    if isinstance(decision, Reject):
        return decision.message
    if isinstance(decision, Wait):
        return _WAITS.get(decision.reason, f"waits: {decision.reason}") + _time(decision.forecast)
    done = _SENT.get(decision.reason, "sent to {predict}")
    taken = next((each for each in options if _identity(each) == _identity(decision)), None)
    forecast = decision.forecast or (None if taken is None else taken.forecast)
    text = done.format(predict=decision.predict, entry=decision.entry) + _time(forecast)
    others = [each for each in options if each is not taken]
    return text if taken is None or not others else text + _next_best(taken, others)


def _time(forecast: LatencyEstimate | None) -> str:
    if forecast is None:
        return ""
    how = "expected" if forecast.is_measured else "expected, by guess"
    return f": {duration(forecast.seconds)} {how}"


def _next_best(taken: RoutingOption, others: Sequence[RoutingOption]) -> str:
    """The cheapest other way, and its difference, to this request and others together.

    A fixed policy may have taken one that costs more.
    """
    best = min(others, key=lambda each: each.cost_s)
    at = f" at {best.predict}" if best.predict else ""
    difference_s = best.cost_s - taken.cost_s
    if difference_s < 0:
        return f"; cheaper: {best.name}{at}, {duration(-difference_s)} less in all"
    return f"; next best: {best.name}{at}, {duration(difference_s)} more in all"


def _identity(way: RoutingOption | SendTo) -> tuple[Reason, str, str]:
    return way.reason, way.entry, way.predict


def duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"
