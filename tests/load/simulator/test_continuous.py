"""Continuous batching: small cases by hand, and rules that hold for any arrivals.

All times are whole multiples of 1/16 s, which floats hold exactly.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from load.simulator.cluster.cluster_file import cluster_of
from load.simulator.simulation import Simulation
from registry.domain.model import RoutingPolicy
from tests.load.simulator.traces import trace

if TYPE_CHECKING:
    from collections.abc import Sequence

MODEL: dict[str, Any] = {
    "name": "m", "size": "1MB", "preprocess": "0s", "postprocess": "0s", "assets": "0s",
    "infer": {1: "500ms", 2: "1s"}, "infer_per_token": "250ms", "generation": "continuous",
    "at": {"n": "device"},
}  # fmt: skip
FREE: dict[str, Any] = {"infer": {1: "1ns"}, "infer_per_token": "1s"}
"""Prompts that cost nothing that counts."""
Asked = tuple[float, str, int]
"""When, of which model, and how many tokens."""


def cluster(*models: dict[str, Any], **pod: Any) -> Any:
    pods = [{"slots": 10_000, "memory": "1GB"} | pod]
    return cluster_of(
        {
            "nodes": [{"name": "n", "pods": pods}],
            "models": [MODEL | model for model in models or ({},)],
            "network": {"gateway_hop": "0s", "pod_hop": "0s"},
        },
        source="test",
    )


def run(plan: Any, asked: Sequence[Asked], **options: Any) -> list[dict[str, Any]]:
    """Records in the order of arrival."""
    tokens = [count for *_, count in asked]
    arrivals = trace([(at_s, model) for at_s, model, _ in asked], tokens=tokens, **options)
    batches = Simulation(plan, arrivals, RoutingPolicy.COLOCATION_QUEUEING, 0)
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: int(row["request_id"].rpartition("-")[2]))


def ends(plan: Any, asked: Sequence[Asked], **options: Any) -> list[float]:
    return [row["finished_s"] for row in run(plan, asked, **options)]


def limited(most: int) -> dict[str, Any]:
    return {"annotations": {"max-batch-size": most}}


def test_a_request_alone_takes_its_prompt_and_its_tokens() -> None:
    [row] = run(cluster(), [(1.0, "m", 4)])
    assert row["finished_s"] == 1.0 + 0.5 + 4 * 0.25
    assert row["infer_ms"] == 1500


def test_the_shorter_of_two_leaves_first_and_the_other_goes_on() -> None:
    # The second joins after the first's prompt and token (0.75 s); its own take until 1.5 s.
    assert ends(cluster(), [(0.0, "m", 2), (0.0, "m", 4)]) == [1.5, 1.5 + 3 * 0.25]


def test_who_comes_amid_an_iteration_joins_at_its_end() -> None:
    # Iterations end at 0.75, 1.0, 1.25; then the second's prompt and token, until 2.0.
    assert ends(cluster(), [(0.0, "m", 10), (1.125, "m", 1)]) == [2.0 + 6 * 0.25, 2.0]


def test_who_comes_as_an_iteration_begins_joins_at_its_end() -> None:
    assert ends(cluster(), [(0.0, "m", 10), (1.0, "m", 1)])[1] == 1.25 + 0.75


def test_who_join_together_share_the_time_of_their_prompts() -> None:
    rows = [(0.0, "m", 1), (0.25, "m", 1), (0.5, "m", 1)]
    assert ends(cluster(), rows) == [0.75, 0.75 + 1.25, 0.75 + 1.25]


def test_the_third_of_two_at_once_joins_when_one_leaves() -> None:
    # 0.75: the second joins; 1.5: the first has its 2 tokens, the third joins; 2.25: it is done.
    rows = [(0.0, "m", 2), (0.0, "m", 8), (0.0, "m", 1)]
    assert ends(cluster(limited(2)), rows) == [1.5, 2.25 + 6 * 0.25, 2.25]


def test_rows_of_a_request_are_sequences_and_join_together() -> None:
    rows = [(0.0, "m", 4), (0.0, "m", 1), (0.0, "m", 1)]
    # Two rows do not fit beside the first; the single one behind them does not overtake.
    assert ends(cluster(limited(2)), rows, items=[1, 2, 1]) == [1.5, 1.5 + 1.25, 2.75 + 0.75]


def test_more_rows_than_fit_run_alone() -> None:
    rows = [(0.0, "m", 2), (0.0, "m", 1)]
    assert ends(cluster(limited(2)), rows, items=[3, 1]) == [2.0, 2.75]


def test_iterations_take_longer_with_more_sequences() -> None:
    per_token = {"infer_per_token": {1: "250ms", 2: "500ms"}}
    # Alone until 0.75, two until 1.75, then alone again.
    assert ends(cluster(per_token), [(0.0, "m", 3), (0.0, "m", 1)]) == [2.0, 1.75]


def test_a_faster_device_iterates_faster() -> None:
    assert ends(cluster(speed=2), [(0.0, "m", 4)]) == [0.75]


def test_two_models_take_turns() -> None:
    models = [{"name": "a"}, {"name": "b", "infer_per_token": "125ms"}]
    # a: 0-0.75; b: 0.75-1.375; a: -1.625; b: -1.75; a: -2.0, its third and last; b: -2.125.
    assert ends(cluster(*models), [(0.0, "a", 3), (0.0, "b", 3)]) == [2.0, 2.125]


def test_another_models_inference_has_its_turn_between_iterations() -> None:
    static = {"name": "s", "generation": "static", "infer_per_token": "0s"}
    # Iterations end at 0.75 and 1.0; the other inference runs until 1.5.
    assert ends(cluster({}, static), [(0.0, "m", 4), (0.875, "s", 0)]) == [2.0, 1.5]


def test_a_deadline_ends_a_generation_at_the_next_token() -> None:
    rows = run(
        cluster(limited(2)), [(0.0, "m", 40), (0.9375, "m", 2), (1.5, "m", 1)], deadline_s=2.0
    )
    # The first is over at 2.0: iterations end at 0.75, 1.0, 1.75 (the second's prompt), 2.0.
    assert [row["status"] for row in rows] == [504, 200, 200]
    assert [row["finished_s"] for row in rows] == [2.0, 2.0, 2.75]


def test_who_waits_to_join_until_the_deadline_never_joins() -> None:
    asked = [(0.0, "m", 40), (0.25, "m", 2), (0.5, "m", 2), (2.125, "m", 1)]
    rows = run(cluster(limited(1)), asked, deadline_s=2.0)
    # The first leaves at 2.0 and the second, late too, at 2.75, when the third is late already.
    assert [row["status"] for row in rows] == [504, 504, 504, 200]
    assert [row["finished_s"] for row in rows] == [2.0, 2.25, 2.5, 2.75 + 0.75]


def test_the_requests_of_a_pod_that_dies_amid_generation_begin_anew_elsewhere() -> None:
    document = {
        "nodes": [{"name": "n", "pods": [{"slots": 4, "kill": "4s"}, {"slots": 4}]}],
        "models": [MODEL | {"at": {"n-0": "device"}, "load": {"disk": "1s"}}],
        "network": {"gateway_hop": "0s", "pod_hop": "0s"},
    }
    plan = cluster_of(document, source="test")
    rows = run(plan, [(0.0, "m", 4), (0.0, "m", 40), (0.0, "m", 40)])
    assert [row["entry_pod"] for row in rows] == ["n-0", "n-1", "n-1"]
    # The first ended at 2.5, after 0.75 and 2.0; the others make all of their tokens anew.
    assert sorted(row["infer_ms"] for row in rows) == pytest.approx([2500, 11_000, 11_250])
    assert {row["start"] for row in rows[1:]} == {"disk"}


def test_a_draining_pod_makes_all_tokens() -> None:
    [row] = run(cluster(drain="1s"), [(0.0, "m", 40)])
    assert (row["status"], row["finished_s"]) == (200, 0.5 + 40 * 0.25)


def test_long_answers_are_few_events() -> None:
    many = 10**12
    quick = {"infer_per_token": "1us", "infer": {1: "1us", 2: "2us"}}
    models = [quick | {"name": "a"}, quick | {"name": "b"}]
    found = ends(cluster(*models), [(0.0, "a", many), (0.0, "b", many), (1000.0, "a", many)])
    assert found == pytest.approx([2e6, 2e6, 2e6 + 1e3], rel=1e-3)


def test_jitter_is_that_of_the_seed() -> None:
    rows = [(0.25 * number, "m", 1 + number % 7) for number in range(40)]
    plan = cluster_of(
        {
            "nodes": [{"name": "n", "pods": [{"slots": 99}]}],
            "models": [MODEL],
            "jitter": 0.3,
        },
        source="test",
    )
    assert ends(plan, rows) == ends(plan, rows) != ends(cluster(), rows)


# Against an account of every single iteration


@dataclass
class Account:
    """One model's batch, reckoned token by token."""

    token_s: float
    prompt_s: float
    waiting: deque[int] = field(default_factory=deque)
    """Numbers of requests."""
    left: dict[int, int] = field(default_factory=dict)
    """Tokens to make, by the number of the request."""

    def iterate(self, asked: Sequence[Asked], most: int) -> float:
        """Let in whom there is room for, make a token for each: the time that this takes."""
        joined = 0
        while self.waiting and len(self.left) < most:
            number = self.waiting.popleft()
            self.left[number] = asked[number][2]
            joined += 1
        self.left = {number: left - 1 for number, left in self.left.items()}
        return joined * self.prompt_s + self.token_s

    def leave(self) -> list[int]:
        """Who has all tokens."""
        done = [number for number, left in self.left.items() if left == 0]
        self.left = {number: left for number, left in self.left.items() if left}
        return done


def reckon(models: dict[str, Account], asked: Sequence[Asked], most: int) -> list[float]:
    """When each request ends: one iteration after the other, models by turns."""
    coming, line, ended = deque(range(len(asked))), list[str](), dict[int, float]()
    now_s = 0.0
    while coming or line:
        if not line:  # whoever comes first finds the device free
            now_s = max(now_s, asked[coming[0]][0])
            line.append(asked[coming[0]][1])
            models[line[0]].waiting.append(coming.popleft())
        model = line[0]
        now_s += models[model].iterate(asked, most)
        while coming and asked[coming[0]][0] < now_s:
            _, name, _ = asked[coming[0]]
            models[name].waiting.append(coming.popleft())
            if name not in line:
                line.append(name)
        ended |= dict.fromkeys(models[model].leave(), now_s)
        line = line[1:]
        if models[model].left or models[model].waiting:
            line.append(model)
    return [ended[number] for number in range(len(asked))]


sixteenths = st.integers(0, 64).map(lambda number: number / 16)


def arrivals(at_s: st.SearchStrategy[float], names: str) -> st.SearchStrategy[list[Asked]]:
    one = st.tuples(at_s, st.sampled_from(names), st.integers(1, 9))
    return st.lists(one, min_size=1, max_size=12).map(sorted)


@given(asked=arrivals(sixteenths, "ab"), most=st.integers(1, 4))
@settings(deadline=None, max_examples=50)
def test_passing_over_iterations_changes_nothing(asked: list[Asked], most: int) -> None:
    other = {"name": "b", "infer": {1: "250ms", 2: "500ms"}, "infer_per_token": "125ms"}
    plan = cluster({"name": "a"} | limited(most), other | limited(most))
    accounts = {"a": Account(0.25, 0.5), "b": Account(0.125, 0.25)}
    assert ends(plan, asked) == reckon(accounts, asked, most)


def later_than_static_s(asked: list[Asked], most: int) -> float:
    """By how much a request ends later than in static batches, at the worst."""
    continuous, static = (
        ends(cluster(FREE | limited(most) | {"generation": how}), asked)
        for how in ("continuous", "static")
    )
    return max(one - other for one, other in zip(continuous, static, strict=True))


@given(asked=arrivals(st.just(0.0), "m"), most=st.integers(1, 4))
@settings(deadline=None, max_examples=50)
def test_of_those_who_come_at_once_nobody_ends_later_than_in_static_batches(
    asked: list[Asked], most: int
) -> None:
    assert later_than_static_s(asked, most) <= 1e-6


@given(asked=arrivals(sixteenths, "m"), most=st.integers(1, 4))
@settings(deadline=None, max_examples=50)
def test_whenever_they_come_nobody_ends_an_iteration_later_than_in_static_batches(
    asked: list[Asked], most: int
) -> None:
    assert later_than_static_s(asked, most) <= 1.0 + 1e-6


@given(asked=arrivals(st.just(0.0), "m"), most=st.integers(1, 4))
@settings(deadline=None, max_examples=50)
def test_all_tokens_are_made_by_no_more_sequences_than_may_be(
    asked: list[Asked], most: int
) -> None:
    by_sequences = {1: "1s", most + 1: "1000000s"} | {
        each: f"{each}s" for each in range(1, most + 1)
    }
    plan = cluster(limited(most) | {"infer_per_token": by_sequences})
    prompts_s, tokens_s = 0.5 * len(asked), float(sum(tokens for *_, tokens in asked))
    assert max(ends(plan, asked)) == prompts_s + tokens_s
