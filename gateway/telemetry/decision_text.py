"""A routing decision as one sentence: what was done, why, how long it should take, the next best.

Such as `warm at pod-3: 21 ms expected; next best: cold start at pod-1, 480 ms more in all`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.routing.decision import Reason, Reject, SendTo, Wait

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.routing.decision import Decision, LatencyEstimate, RoutingOption

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


def decision_text(decision: Decision, options: Sequence[RoutingOption] = ()) -> str:
    """The sentence; of a rejection its message. `options`: the ways, if not the decision's."""
    options = options or decision.options
    if isinstance(decision, Reject):
        return decision.message
    if isinstance(decision, Wait):
        return _WAITS.get(decision.reason, f"waits: {decision.reason}") + _time(decision.forecast)
    done = _SENT.get(decision.reason, "sent to {predict}")
    taken = next((each for each in options if _is_taken(each, decision)), None)
    forecast = decision.forecast or (None if taken is None else taken.forecast)
    text = done.format(predict=decision.predict, entry=decision.entry) + _time(forecast)
    others = [each for each in options if each is not taken]
    return text if taken is None or not others else text + _next_best(taken, others)


def _time(forecast: LatencyEstimate | None) -> str:
    if forecast is None:
        return ""
    how = "expected" if forecast.is_measured else "expected, by guess"
    return f": {_duration(forecast.seconds)} {how}"


def _next_best(taken: RoutingOption, others: Sequence[RoutingOption]) -> str:
    """The cheapest other way, and its difference, to this request and others together.

    A fixed policy may have taken one that costs more.
    """
    best = min(others, key=lambda each: each.cost_s)
    at = f" at {best.predict}" if best.predict else ""
    difference_s = best.cost_s - taken.cost_s
    if difference_s < 0:
        return f"; cheaper: {best.name}{at}, {_duration(-difference_s)} less in all"
    return f"; next best: {best.name}{at}, {_duration(difference_s)} more in all"


def _is_taken(option: RoutingOption, decision: SendTo) -> bool:
    return (option.reason, option.entry, option.predict) == (
        decision.reason, decision.entry, decision.predict,
    )  # fmt: skip


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"
