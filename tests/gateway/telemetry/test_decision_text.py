"""Decisions as sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.routing.decision import (
    LatencyEstimate,
    Reason,
    Reject,
    RoutingOption,
    SendTo,
    Wait,
)
from gateway.telemetry.decision_text import decision_text
from registry.domain.reservation import LoadMode

WARM = RoutingOption("colocate", LatencyEstimate(0.021, True), Reason.WARM, "pod-3", "pod-3")
COLD = RoutingOption(
    "cold start", LatencyEstimate(0.3, False), Reason.COLD_WARM_BUSY, "pod-1", "pod-1",
    LoadMode.LOAD, evicts_s=0.2,
)  # fmt: skip
QUEUE = RoutingOption("queue", LatencyEstimate(0.9, True), Reason.QUEUE_WARM_BUSY)


def sent(option: RoutingOption, *options: RoutingOption) -> SendTo:
    return SendTo(
        option.entry, option.predict, LoadMode.WARM, option.reason, forecast=option.forecast,
        options=options,
    )  # fmt: skip


def test_a_request_that_was_sent_names_the_pod_its_time_and_the_next_best_way() -> None:
    assert decision_text(sent(WARM, QUEUE, COLD, WARM)) == (
        "warm at pod-3: 21 ms expected; next best: cold start at pod-1, 479 ms more in all"
    )
    assert decision_text(sent(COLD, COLD, QUEUE)) == (
        "loaded at pod-1 as well, as the pods that have it are busy: 300 ms expected, by guess; "
        "next best: queue, 400 ms more in all"
    )


def test_a_policy_that_took_a_dearer_way_names_the_cheapest() -> None:
    oblivious = replace(COLD, reason=Reason.MODEL_OBLIVIOUS)
    decision = SendTo("pod-1", "pod-1", LoadMode.LOAD, Reason.MODEL_OBLIVIOUS)
    assert decision_text(decision, (oblivious, QUEUE, WARM)) == (
        "sent to pod-1 by a policy that does not look at models: 300 ms expected, by guess; "
        "cheaper: colocate at pod-3, 479 ms less in all"
    )


def test_without_a_comparison_nothing_is_said_of_others() -> None:
    assert decision_text(sent(WARM)) == "warm at pod-3: 21 ms expected"
    proxied = SendTo("pod-1", "pod-2", LoadMode.WARM, Reason.WARM_REMOTE)
    assert decision_text(proxied) == ("warm at pod-2, which infers; pod-1 prepares the request")


def test_waiting_and_rejection_say_why() -> None:
    waiting = Wait(Reason.QUEUE_NO_SLOT, LatencyEstimate(1.25, True))
    assert decision_text(waiting) == "waits, as no pod has a free slot: 1.2 s expected"
    assert decision_text(Reject(Reason.DEADLINE, "too late")) == "too late"


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_words(reason: Reason) -> None:
    """No sentence but a rejection's contains the reason's name, which is a metric label."""
    decision = Wait(reason) if is_of_waiting(reason) else SendTo("a", "b", LoadMode.WARM, reason)
    if reason not in REJECTIONS:
        assert decision_text(decision) not in {"sent to b", f"waits: {reason}"}


REJECTIONS = {
    Reason.DEADLINE, Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT, Reason.LOAD_FAILED,
    Reason.MODEL_GONE, Reason.NO_SUPPORTING_RUNTIME,
}  # fmt: skip


def is_of_waiting(reason: Reason) -> bool:
    return reason.startswith("queue-") or reason is Reason.NO_PODS
