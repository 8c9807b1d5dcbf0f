"""Why requests went where they went: the last decisions, kept for `pilotlight explain`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gateway.routing.decision import Reject, RoutingOption, SendTo, Wait

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.routing.decision import LatencyEstimate
    from gateway.routing.route_request import IncomingRequest, RoutingResult
    from registry.domain.cluster import ClusterState
    from registry.domain.residency_index import Residency

KEPT: Final = 4096
_MOST_CANDIDATES: Final = 32


@dataclass(slots=True)
class _Explanation:
    arrival: IncomingRequest
    decided: RoutingResult
    pods: list[tuple[str, int, int, int, bool]]
    """Name, slots taken, slots, requests inferring, accepting: as the decision saw them."""
    holders: Mapping[str, Residency]
    waits: list[str] = field(default_factory=list)


class Explanations:
    """A bounded memory of decisions by request id; the oldest go first."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._by_id: dict[str, _Explanation] = {}

    def record(self, arrival: IncomingRequest, decided: RoutingResult, state: ClusterState) -> None:
        """Remember a decision; one to wait again for the same reason is not news."""
        known = self._by_id.get(arrival.id)
        if known is not None and known.arrival is not arrival:
            known = None  # another request under the same id
            del self._by_id[arrival.id]
        decision = decided.decision
        waits = known.waits if known else []
        if isinstance(decision, Wait):
            if waits and waits[-1] == decision.reason:
                return
            waits.append(decision.reason)
        if known is None and len(self._by_id) >= self._kept:
            del self._by_id[next(iter(self._by_id))]
        holders = dict(state.holders(decided.spec.key)) if decided.spec else {}
        pods = [
            (pod.name, pod.slots_busy, pod.slots, pod.inferring, pod.is_accepting)
            for pod in _candidates(state, decision, holders)
        ]
        self._by_id[arrival.id] = _Explanation(arrival, decided, pods, holders, waits)

    def get(self, request_id: str) -> dict[str, Any] | None:
        """The explanation of one request as JSON, if it is still remembered."""
        known = self._by_id.get(request_id)
        if known is None:
            return None
        return {
            "request_id": request_id,
            "model": str(known.arrival.model),
            "policy": known.decided.policy,
            "decision": _decision(known.decided.decision),
            "waited_for": known.waits,
            "options": _options(known.decided.decision),
            "candidates": [_candidate(pod, known.holders) for pod in known.pods],
        }


def _candidates(
    state: ClusterState, decision: SendTo | Wait | Reject, holders: Mapping[str, Residency]
) -> list[Any]:
    if len(state.pods) <= _MOST_CANDIDATES:
        return list(state.pods.values())
    names = list(holders)[:_MOST_CANDIDATES]
    if isinstance(decision, SendTo):
        names += [decision.entry, decision.predict]
    return [state.pods[name] for name in dict.fromkeys(names) if name in state.pods]


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


def _options(decision: SendTo | Wait | Reject) -> list[dict[str, Any]]:
    options: tuple[RoutingOption, ...] = () if isinstance(decision, Reject) else decision.options
    return [
        {
            "way": option.way,
            "entry": option.entry,
            "predict": option.predict,
            **_forecast(option.forecast),
            **({"credit_s": round(option.credit_s, 6)} if option.credit_s else {}),
        }
        for option in options
    ]


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
