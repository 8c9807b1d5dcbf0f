"""Continuous batching: small cases by hand, and rules that hold for any arrivals.

All times are whole multiples of 1/16 s, which floats hold exactly.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from load.simulator.cluster.cluster_file import cluster_of
from load.simulator.simulation import Simulation
from registry.domain.model import RoutingPolicy
from tests.load.simulator.traces import trace

MODEL: dict[str, Any] = {
    "name": "m", "size": "1MB", "preprocess": "0s", "postprocess": "0s", "assets": "0s",
    "infer": {1: "500ms", 2: "1s"}, "infer_per_token": "250ms", "generation": "continuous",
    "at": {"n": "device"},
}  # fmt: skip
FREE: dict[str, Any] = {"infer": {1: "1ns"}, "infer_per_token": "1s"}
"""Prompts that take almost no time."""
Sent = tuple[float, str, int]
"""Time, model, and number of tokens."""


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


def run(plan: Any, sent: Sequence[Sent], **options: Any) -> list[dict[str, Any]]:
    """Records in the order of arrival."""
    tokens = [count for *_, count in sent]
    arrivals = trace([(at_s, model) for at_s, model, _ in sent], tokens=tokens, **options)
    batches = Simulation(plan, arrivals, RoutingPolicy.COLOCATION_QUEUEING, 0)
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: int(row["request_id"].rpartition("-")[2]))


def ends(plan: Any, sent: Sequence[Sent], **options: Any) -> list[float]:
    return [row["finished_s"] for row in run(plan, sent, **options)]


def limited(rows: int) -> dict[str, Any]:
    return {"annotations": {"max-batch-size": rows}}


def test_lone_request_takes_its_prompt_and_its_tokens() -> None:
    [row] = run(cluster(), [(1.0, "m", 4)])
    assert row["finished_s"] == 1.0 + 0.5 + 4 * 0.25
    assert row["infer_ms"] == 1500


PREFILLED: dict[str, Any] = {
    "infer": {1: "1ns"}, "infer_per_token": "250ms", "input": "tokens", "prefill": "1ms",
    "prefix_cache": 2048,
}  # fmt: skip
"""512 tokens of a prompt take 0.512 s; four blocks are kept."""


def firsts(plan: Any, blocks: Sequence[Sequence[int]], **options: Any) -> list[float]:
    """Times to the first token of prompts of these blocks, one every 100 s."""
    sent = [(100.0 * at, "m", 2) for at in range(len(blocks))]
    items = [512 * len(each) for each in blocks]
    rows = run(plan, sent, items=items, blocks=blocks, **options)
    assert [row["finished_s"] - row["first_byte_s"] for row in rows] == pytest.approx([0.25] * 3)
    return [row["first_byte_s"] - row["scheduled_s"] for row in rows]


@pytest.mark.parametrize(
    ("blocks", "computed"),
    [
        pytest.param([[1, 2], [1, 2, 3], [1, 2, 3, 4]], [1024, 512, 512], id="a-conversation"),
        pytest.param([[1, 2], [1, 2], [9, 8]], [1024, 1, 1024], id="the-same-but-its-last-token"),
        pytest.param(
            [[1, 2, 3], [4, 5, 6], [1, 2, 3]], [1536, 1536, 1024], id="the-oldest-ones-end-leaves"
        ),
    ],
)
def test_what_is_kept_of_prompts_is_not_computed_again(
    blocks: list[list[int]], computed: list[int]
) -> None:
    expected = [each / 1000 + 0.25 for each in computed]
    assert firsts(cluster(PREFILLED), blocks) == pytest.approx(expected)


def test_without_a_cache_all_is_computed() -> None:
    found = firsts(cluster(PREFILLED | {"prefix_cache": 0}), [[1]] * 3)
    assert found == pytest.approx([0.762] * 3)


def test_nothing_is_kept_of_a_model_that_was_unloaded() -> None:
    other = {"name": "o", "at": {}, "size": "1GB"}
    plan = cluster(PREFILLED, other)
    sent = [(0.0, "m", 1), (100.0, "o", 1), (200.0, "m", 1)]
    simulation = Simulation(
        plan,
        trace(
            [(at_s, model) for at_s, model, _ in sent],
            tokens=[1] * 3,
            items=[512, 1, 512],
            blocks=[[1], [], [1]],
        ),
        RoutingPolicy.COLOCATION_QUEUEING,
        0,
    )
    rows = [row for batch in simulation for row in batch.to_pylist()]
    assert rows[2]["start"] != "warm"
    assert simulation.summary.cached_tokens == 0


@pytest.mark.parametrize(
    ("model", "sent", "items", "expected"),
    [
        # The second joins after the first's prompt and token (0.75 s); its own take until 1.5 s.
        pytest.param(
            {},
            [(0.0, "m", 2), (0.0, "m", 4)],
            None,
            [1.5, 1.5 + 3 * 0.25],
            id="the shorter of two leaves first",
        ),
        # Iterations end at 0.75, 1.0, 1.25; then the second's prompt and token, until 2.0.
        pytest.param(
            {},
            [(0.0, "m", 10), (1.125, "m", 1)],
            None,
            [2.0 + 6 * 0.25, 2.0],
            id="joins at the end of the iteration",
        ),
        pytest.param(
            {},
            [(0.0, "m", 10), (1.0, "m", 1)],
            None,
            [2.0 + 6 * 0.25, 1.25 + 0.75],
            id="arrives as an iteration begins",
        ),
        pytest.param(
            {},
            [(0.0, "m", 1), (0.25, "m", 1), (0.5, "m", 1)],
            None,
            [0.75, 0.75 + 1.25, 0.75 + 1.25],
            id="joint prompts share their time",
        ),
        # 0.75: the second joins; 1.5: the first has its 2 tokens, the third joins; 2.25: it ends.
        pytest.param(
            limited(2),
            [(0.0, "m", 2), (0.0, "m", 8), (0.0, "m", 1)],
            None,
            [1.5, 2.25 + 6 * 0.25, 2.25],
            id="the third of two joins when one leaves",
        ),
        # Two rows do not fit beside the first; the single one behind them does not overtake.
        pytest.param(
            limited(2),
            [(0.0, "m", 4), (0.0, "m", 1), (0.0, "m", 1)],
            [1, 2, 1],
            [1.5, 1.5 + 1.25, 2.75 + 0.75],
            id="rows of a request join together",
        ),
        pytest.param(
            limited(2),
            [(0.0, "m", 2), (0.0, "m", 1)],
            [3, 1],
            [2.0, 2.75],
            id="more rows than the limit run alone",
        ),
        # Alone until 0.75, two until 1.75, then alone again.
        pytest.param(
            {"infer_per_token": {1: "250ms", 2: "500ms"}},
            [(0.0, "m", 3), (0.0, "m", 1)],
            None,
            [2.0, 1.75],
            id="more sequences take longer",
        ),
    ],
)
def test_ends_of_requests(
    model: dict[str, Any], sent: list[Sent], items: list[int] | None, expected: list[float]
) -> None:
    assert ends(cluster(model), sent, items=items) == expected


def test_faster_device_iterates_faster() -> None:
    assert ends(cluster(speed=2), [(0.0, "m", 4)]) == [0.75]


def test_two_models_take_turns() -> None:
    models = [{"name": "a"}, {"name": "b", "infer_per_token": "125ms"}]
    # a: 0-0.75; b: 0.75-1.375; a: -1.625; b: -1.75; a: -2.0, its third and last; b: -2.125.
    assert ends(cluster(*models), [(0.0, "a", 3), (0.0, "b", 3)]) == [2.0, 2.125]


def test_inference_of_another_model_runs_between_iterations() -> None:
    static = {"name": "s", "generation": "static", "infer_per_token": "0s"}
    # Iterations end at 0.75 and 1.0; the other inference runs until 1.5.
    assert ends(cluster({}, static), [(0.0, "m", 4), (0.875, "s", 0)]) == [2.0, 1.5]


def test_deadline_ends_a_generation_at_the_next_token() -> None:
    rows = run(
        cluster(limited(2)), [(0.0, "m", 40), (0.9375, "m", 2), (1.5, "m", 1)], deadline_s=2.0
    )
    # The first is over at 2.0: iterations end at 0.75, 1.0, 1.75 (the second's prompt), 2.0.
    assert [row["status"] for row in rows] == [504, 200, 200]
    assert [row["finished_s"] for row in rows] == [2.0, 2.0, 2.75]


def test_request_that_waits_until_its_deadline_never_joins() -> None:
    sent = [(0.0, "m", 40), (0.25, "m", 2), (0.5, "m", 2), (2.125, "m", 1)]
    rows = run(cluster(limited(1)), sent, deadline_s=2.0)
    # The first leaves at 2.0 and the second, late too, at 2.75, when the third is late already.
    assert [row["status"] for row in rows] == [504, 504, 504, 200]
    assert [row["finished_s"] for row in rows] == [2.0, 2.25, 2.5, 2.75 + 0.75]


def test_generations_of_a_dead_pod_start_again_elsewhere() -> None:
    document = {
        "nodes": [{"name": "n", "pods": [{"slots": 4, "kill": "4s"}, {"slots": 4}]}],
        "models": [MODEL | {"at": {"n-0": "device"}, "load": {"disk": "1s"}}],
        "network": {"gateway_hop": "0s", "pod_hop": "0s"},
    }
    plan = cluster_of(document, source="test")
    rows = run(plan, [(0.0, "m", 4), (0.0, "m", 40), (0.0, "m", 40)])
    assert [row["entry_pod"] for row in rows] == ["n-0", "n-1", "n-1"]
    # The first ended at 2.5, after 0.75 and 2.0; the others make all of their tokens again.
    assert sorted(row["infer_ms"] for row in rows) == pytest.approx([2500, 11_000, 11_250])
    assert {row["start"] for row in rows[1:]} == {"disk"}


def test_draining_pod_makes_all_tokens() -> None:
    [row] = run(cluster(drain="1s"), [(0.0, "m", 40)])
    assert (row["status"], row["finished_s"]) == (200, 0.5 + 40 * 0.25)


def test_long_answers_are_few_events() -> None:
    many = 10**12
    quick = {"infer_per_token": "1us", "infer": {1: "1us", 2: "2us"}}
    models = [quick | {"name": "a"}, quick | {"name": "b"}]
    found = ends(cluster(*models), [(0.0, "a", many), (0.0, "b", many), (1000.0, "a", many)])
    assert found == pytest.approx([2e6, 2e6, 2e6 + 1e3], rel=1e-3)


def test_jitter_depends_on_the_seed() -> None:
    rows = [(0.25 * number, "m", 1 + number % 7) for number in range(40)]
    plan = cluster_of(
        {"nodes": [{"name": "n", "pods": [{"slots": 99}]}], "models": [MODEL], "jitter": 0.3},
        source="test",
    )
    assert ends(plan, rows) == ends(plan, rows) != ends(cluster(), rows)


@dataclass
class ReferenceBatch:
    """One model's batch, computed token by token."""

    token_s: float
    prompt_s: float
    waiting: deque[int] = field(default_factory=deque)
    """Numbers of requests."""
    left: dict[int, int] = field(default_factory=dict)
    """Tokens to make, by the number of the request."""

    def iterate(self, sent: Sequence[Sent], most: int) -> float:
        """Let requests join, make a token for each sequence; returns the time of this."""
        joined = 0
        while self.waiting and len(self.left) < most:
            number = self.waiting.popleft()
            self.left[number] = sent[number][2]
            joined += 1
        self.left = {number: left - 1 for number, left in self.left.items()}
        return joined * self.prompt_s + self.token_s

    def leave(self) -> list[int]:
        """Remove the requests that have all tokens."""
        done = [number for number, left in self.left.items() if left == 0]
        self.left = {number: left for number, left in self.left.items() if left}
        return done


def reference_ends(
    models: dict[str, ReferenceBatch], sent: Sequence[Sent], most: int
) -> list[float]:
    """When each request ends: one iteration after another, models in rotation."""
    coming, queue, ended = deque(range(len(sent))), list[str](), dict[int, float]()
    now_s = 0.0
    while coming or queue:
        if not queue:  # the next arrival finds the device free
            now_s = max(now_s, sent[coming[0]][0])
            queue.append(sent[coming[0]][1])
            models[queue[0]].waiting.append(coming.popleft())
        model = queue[0]
        now_s += models[model].iterate(sent, most)
        while coming and sent[coming[0]][0] < now_s:
            _, name, _ = sent[coming[0]]
            models[name].waiting.append(coming.popleft())
            if name not in queue:
                queue.append(name)
        ended |= dict.fromkeys(models[model].leave(), now_s)
        queue = queue[1:]
        if models[model].left or models[model].waiting:
            queue.append(model)
    return [ended[number] for number in range(len(sent))]


sixteenths = st.integers(0, 64).map(lambda number: number / 16)


def arrivals(at_s: st.SearchStrategy[float], names: str) -> st.SearchStrategy[list[Sent]]:
    one = st.tuples(at_s, st.sampled_from(names), st.integers(1, 9))
    return st.lists(one, min_size=1, max_size=12).map(sorted)


@given(sent=arrivals(sixteenths, "ab"), most=st.integers(1, 4))
@settings(deadline=None, max_examples=50)
def test_joined_iterations_end_as_single_ones(sent: list[Sent], most: int) -> None:
    other = {"name": "b", "infer": {1: "250ms", 2: "500ms"}, "infer_per_token": "125ms"}
    plan = cluster({"name": "a"} | limited(most), other | limited(most))
    accounts = {"a": ReferenceBatch(0.25, 0.5), "b": ReferenceBatch(0.125, 0.25)}
    assert ends(plan, sent) == reference_ends(accounts, sent, most)


def later_than_static_s(sent: list[Sent], most: int) -> float:
    """Largest delay of a request relative to static batches."""
    continuous, static = (
        ends(cluster(FREE | limited(most) | {"generation": how}), sent)
        for how in ("continuous", "static")
    )
    return max(one - other for one, other in zip(continuous, static, strict=True))


@given(sent=arrivals(st.just(0.0), "m"), most=st.integers(1, 4))
@settings(deadline=None, max_examples=50)
def test_simultaneous_requests_end_no_later_than_in_static_batches(
    sent: list[Sent], most: int
) -> None:
    assert later_than_static_s(sent, most) <= 1e-6


@given(sent=arrivals(sixteenths, "m"), most=st.integers(1, 4))
@settings(deadline=None, max_examples=50)
def test_requests_end_at_most_an_iteration_later_than_in_static_batches(
    sent: list[Sent], most: int
) -> None:
    assert later_than_static_s(sent, most) <= 1.0 + 1e-6


@given(sent=arrivals(st.just(0.0), "m"), most=st.integers(1, 4))
@settings(deadline=None, max_examples=50)
def test_tokens_are_made_by_at_most_the_maximum_of_sequences(sent: list[Sent], most: int) -> None:
    by_sequences = {1: "1s", most + 1: "1000000s"} | {
        each: f"{each}s" for each in range(1, most + 1)
    }
    plan = cluster(limited(most) | {"infer_per_token": by_sequences})
    prompts_s, tokens_s = 0.5 * len(sent), float(sum(tokens for *_, tokens in sent))
    assert max(ends(plan, sent)) == prompts_s + tokens_s
