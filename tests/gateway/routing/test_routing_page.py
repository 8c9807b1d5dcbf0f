"""The example of docs/routing.md comes out of the code as the page says."""

from pathlib import Path
from typing import Any

import pytest

from gateway.routing.auto import weigh
from gateway.routing.decision import RoutingOption, SendTo, Wait
from registry.domain.cluster import ChangeApplier, ClusterState
from tests.gateway.cluster_states import KEY, NOW_S, PodSketch, cluster, request

PAGE = (Path(__file__).parents[3] / "docs" / "routing.md").read_text()
OTHER = "default/other@0"
TIMES = {
    "load:remote": 2.0, "infer": 0.2, "preprocess": 0.02, "postprocess": 0.03, "network": 0.01,
}  # fmt: skip


def state() -> ClusterState:
    pods = (
        PodSketch("pod-a", "warm", slots=2, busy=2),
        PodSketch("pod-b", slots=2, memory_bytes=100),
    )
    found = cluster(*pods, measured=TIMES)
    changes = [["samples", OTHER, measure, [seconds]] for measure, seconds in TIMES.items()]
    held = ["at", OTHER, "pod-b", f"device|-|{int(NOW_S * 1000)}|100"]
    ChangeApplier(found).apply(2, [*changes, held])
    for key, per_s in ((OTHER, 1), (KEY, 2)):
        for number in range(60 * per_s):
            found.arrivals.record(key, NOW_S - 60 + (number + 1) / per_s)
    return found


def options(decision: object) -> dict[str, RoutingOption]:
    assert isinstance(decision, SendTo | Wait)
    return {option.name: option for option in decision.options}


@pytest.mark.parametrize(
    ("name", "queue", "choice"),
    [
        pytest.param("alone", {}, "waits", id="alone"),
        pytest.param("the last of 20 queued", {"ahead": 19, "queued": 20}, "proxies", id="last"),
        pytest.param("the first of 40 queued", {"behind": 39, "queued": 40}, "loads", id="first"),
    ],
)
def test_each_row_is_what_auto_weighs(name: str, queue: dict[str, Any], choice: str) -> None:
    decision = weigh(request(**queue), state(), NOW_S, has_hopeless=True)
    found = options(decision)
    costs = " | ".join(f"{found[each].cost_s:.2f}" for each in ("queue", "proxy", "cold start"))
    assert f"| {name} | {costs} | {choice} |" in PAGE
    assert isinstance(decision, Wait) is (choice == "waits")


def test_the_parts_of_the_cold_start_are_stated() -> None:
    alone = options(weigh(request(), state(), NOW_S, has_hopeless=True))["cold start"]
    parts = f"{alone.forecast.seconds:.2f} expected + {alone.delays_s:.2f} delays"
    assert parts in PAGE
    assert f"{alone.evicts_s:.2f} evicts" in PAGE
    queued = request(behind=39, queued=40)
    first = options(weigh(queued, state(), NOW_S, has_hopeless=True))["cold start"]
    assert f"delays are {first.delays_s:.2f}" in PAGE
    assert f"leaves {-first.leaves_s:.2f}" in PAGE
