"""Explanations of decisions: content, sentences and maximum number."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.routing.decision import LatencyEstimate, Reason, Reject, RoutingOption, SendTo, Wait
from gateway.routing.route_request import IncomingRequest, route_request
from gateway.telemetry.explanations import (
    MAX_WEIGHED,
    Explanations,
    decision_text,
    find_explanation,
)
from registry.domain.cluster import ChangeApplier
from registry.domain.model import ModelName, ModelSpec, RoutingPolicy
from registry.domain.pod_state import LoadMode
from tests.gateway.cluster_states import NOW_S, PodSketch, cluster, declare

NAME = ModelName("default", "m")
KEY = ModelSpec(NAME, "file:///m").key
MEASURED = {"load:remote": 1.0, "infer": 0.1, "preprocess": 0.0, "postprocess": 0.0}

WARM = RoutingOption("colocate", LatencyEstimate(0.021, True), Reason.WARM, "pod-3", "pod-3")
COLD = RoutingOption(
    "cold start",
    LatencyEstimate(0.3, False),
    Reason.COLD_WARM_BUSY,
    "pod-1",
    "pod-1",
    LoadMode.LOAD,
    evicts_s=0.2,
)
QUEUE = RoutingOption("queue", LatencyEstimate(0.9, True), Reason.QUEUE_WARM_BUSY)


def incoming(request_id: str, **fields: Any) -> IncomingRequest:
    return IncomingRequest(request_id, NAME, NOW_S, 0.0, 1, **fields)


def record(
    explanations: Explanations, request: IncomingRequest, *pods: PodSketch, load_s: float = 1.0
) -> None:
    state = cluster(*pods, key=KEY, measured={**MEASURED, "load:remote": load_s})
    declare(state)
    result = route_request(request, state.models, state, now_s=NOW_S)
    explanations.record(request, result, state, NOW_S)


def test_explains_decision_candidates_and_options() -> None:
    explanations = Explanations()
    pods = (PodSketch("pod-a", "warm", busy=1), PodSketch("pod-b"))
    record(explanations, incoming("r"), *pods, load_s=0.05)
    found = explanations.get("r")
    assert found is not None
    assert found["model"] == "default/m"
    assert found["policy"] == "auto"
    assert found["decision"]["reason"]
    assert [option["way"] for option in found["options"]] == ["queue", "cold start"]
    assert {pod["pod"]: pod["tier"] for pod in found["candidates"]} == {
        "pod-a": "device",
        "pod-b": "remote",
    }


def test_an_idle_pod_that_was_taken_at_once_is_shown_beside_the_next_best_ways() -> None:
    explanations = Explanations()
    pods = [PodSketch(name, "warm", slots=2) for name in ("pod-a", "pod-b")]
    record(explanations, incoming("r"), *pods, PodSketch("pod-c"))
    found = explanations.get("r")
    assert found is not None
    taken, other, *_ = found["options"]
    assert (taken["way"], taken["predict"], taken["delays_s"]) == ("colocate", "pod-a", 0.0)
    assert (other["way"], other["predict"]) == ("colocate", "pod-b")
    assert found["summary"].startswith(
        "warm at pod-a: 100 ms expected; next best: colocate at pod-b"
    )


def test_beyond_so_many_requests_a_second_an_idle_pod_is_shown_alone() -> None:
    explanations = Explanations()
    for n in range(MAX_WEIGHED + 1):
        record(explanations, incoming(f"r{n}"), PodSketch("pod-a", "warm"), PodSketch("pod-b"))
    found = explanations.get(f"r{MAX_WEIGHED}")
    assert found is not None
    (option,) = found["options"]
    assert (option["way"], option["predict"]) == ("colocate", "pod-a")
    assert found["summary"] == "warm at pod-a: 100 ms expected"


@pytest.mark.parametrize("policy", [each for each in RoutingPolicy if each != "auto"])
@pytest.mark.parametrize("at", ["warm", "nothing", "disk", "loading:disk"])
def test_a_fixed_policy_shows_the_ways_there_were_and_says_which_one_it_took(
    policy: RoutingPolicy, at: str
) -> None:
    explanations = Explanations()
    pods = (PodSketch("pod-a", at, slots=2), PodSketch("pod-b", slots=2))
    record(explanations, incoming("r", policy=policy), *pods)
    found = explanations.get("r")
    assert found is not None
    taken = found["options"][0]
    assert (taken["entry"], taken["predict"]) == (
        found["decision"]["entry"],
        found["decision"]["predict"],
    )
    assert taken["expected_s"] > 0
    assert " expected" in found["summary"]


def test_a_fixed_policy_says_what_a_cheaper_way_would_have_cost_less() -> None:
    explanations = Explanations()
    pods = (PodSketch("pod-a", "warm"), PodSketch("pod-b"))
    record(explanations, incoming("r", policy=RoutingPolicy.ROUND_ROBIN), *pods)
    found = explanations.get("r")
    assert found is not None
    assert [(each["way"], each["predict"]) for each in found["options"]] == [
        ("cold start", "pod-b"),
        ("colocate", "pod-a"),
    ]
    assert found["summary"] == (
        "sent to pod-b by a policy that does not look at models: 1.1 s expected; "
        "cheaper: colocate at pod-a, 1.0 s less in all"
    )


def test_an_explanation_does_not_take_the_rates_that_a_later_decision_takes() -> None:
    state = cluster(PodSketch("pod-a", "warm"), PodSketch("pod-b"), key=KEY, measured=MEASURED)
    declare(state)
    state.eviction_prices.refresh(NOW_S - 100)
    for second in range(30):
        state.arrivals.record(KEY, NOW_S - 30 + second)
    request = incoming("r", policy=RoutingPolicy.RANDOM)
    result = route_request(request, state.models, state, now_s=NOW_S)
    before = state.eviction_prices.rate_per_s(KEY)
    Explanations().record(request, result, state, NOW_S)
    assert state.eviction_prices.rate_per_s(KEY) == before
    assert state.prices_at(NOW_S).rate_per_s(KEY) > before


def test_ways_of_fixed_policies_are_weighed_for_so_many_requests_a_second() -> None:
    explanations = Explanations()
    for n in range(MAX_WEIGHED + 1):
        one = incoming(f"r{n}", policy=RoutingPolicy.RANDOM)
        record(explanations, one, PodSketch("pod-a"))
    found = [explanations.get(f"r{n}") for n in range(MAX_WEIGHED + 1)]
    assert [bool(each and each["options"]) for each in found] == [True] * MAX_WEIGHED + [False]


def test_a_refusal_shows_the_options_that_would_have_been_late() -> None:
    explanations = Explanations()
    state = cluster(PodSketch("pod-a", "warm", slots=2, busy=1), key=KEY, measured=MEASURED)
    declare(state)
    request = incoming("r", deadline_s=NOW_S + 0.05)
    result = route_request(request, state.models, state, now_s=NOW_S)
    explanations.record(request, result, state, NOW_S)
    found = explanations.get("r")
    assert found is not None
    assert found["decision"]["action"] == "reject"
    assert [option["way"] for option in found["options"]] == ["colocate"]


def test_an_explanation_shows_the_state_at_the_decision() -> None:
    explanations = Explanations()
    request = incoming("r", policy=RoutingPolicy.COLOCATION)
    state = cluster(PodSketch("pod-a", "warm"), key=KEY)
    declare(state)
    result = route_request(request, state.models, state, now_s=NOW_S)
    explanations.record(request, result, state, NOW_S)
    ChangeApplier(state).apply(9, [["counts", "pod-a", 1, 1], ["at", KEY, "pod-a", False]])
    found = explanations.get("r")
    assert found is not None
    assert found["candidates"][0]["slots_used"] == 0
    assert found["candidates"][0]["tier"] == "device"


def test_drops_the_older_half_beyond_the_maximum() -> None:
    explanations = Explanations(max_explanations=4)
    for n in range(9):
        record(explanations, incoming(f"r{n}"), PodSketch("pod-a"))
    assert [n for n in range(9) if explanations.get(f"r{n}")] == [6, 7, 8]


def test_lists_every_wait_reason_once() -> None:
    explanations = Explanations()
    request = incoming("r")
    for _ in range(3):
        record(explanations, request, PodSketch("pod-a", busy=1))
    record(explanations, request, PodSketch("pod-a"))
    found = explanations.get("r")
    assert found is not None
    assert found["waited_for"] == ["queue-no-slot"]
    assert found["decision"]["action"] == "send"


def test_a_reused_request_id_explains_the_last_request() -> None:
    explanations = Explanations()
    record(explanations, incoming("r"), PodSketch("pod-a", busy=1))
    record(explanations, incoming("r"), PodSketch("pod-a"))
    found = explanations.get("r")
    assert found is not None
    assert found["waited_for"] == []


def test_lists_only_relevant_pods_of_a_large_pool() -> None:
    explanations = Explanations()
    pods = [PodSketch(f"pod-{n:03}", "warm" if n == 70 else "nothing") for n in range(100)]
    record(explanations, incoming("r"), *pods)
    found = explanations.get("r")
    assert found is not None
    assert [pod["pod"] for pod in found["candidates"]] == ["pod-070"]


def test_every_option_shows_what_it_costs_itself_and_others_in_seconds() -> None:
    explanations = Explanations()
    record(explanations, incoming("r"), PodSketch("pod-a", "warm", busy=1), PodSketch("pod-b"))
    found = explanations.get("r")
    assert found is not None
    for option in found["options"]:
        others_s = option["delays_s"] + option["evicts_s"] + option["leaves_s"]
        assert str(option["leaves_s"]) != "-0.0"
        assert option["cost_s"] == round(option["expected_s"] + others_s - option["credit_s"], 6)


def test_another_tenants_explanation_of_the_same_id_is_hidden() -> None:
    """A client may choose the id of another tenant's request."""
    explanations = Explanations()
    record(explanations, incoming("r"), PodSketch("pod-a", "warm"))
    for namespaces in (("default",), None):
        assert find_explanation([explanations], "r", namespaces)["model"] == "default/m"
    assert not find_explanation([explanations], "r", ("other",))
    explanations.record_selection("other/app", "r", lambda: {"application": "other/app"})
    assert not find_explanation([explanations], "r", ("default",))


def sent(option: RoutingOption, *options: RoutingOption) -> SendTo:
    return SendTo(
        option.entry,
        option.predict,
        LoadMode.WARM,
        option.reason,
        forecast=option.forecast,
        options=options,
    )


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
    Reason.MODEL_GONE, Reason.NO_SUPPORTING_RUNTIME, Reason.MODEL_STOPPED,
    Reason.POLICY_FAILED,
}  # fmt: skip


def is_of_waiting(reason: Reason) -> bool:
    return reason.startswith("queue-") or reason is Reason.NO_PODS
