"""What is remembered of the prompts that pods were sent."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.domain import prompt_prefixes
from registry.domain.cluster import ChangeApplier, ClusterState
from registry.domain.prompt_prefixes import KeptBlocks, Prompt, PromptPrefixes
from tests.gateway.cluster_states import KEY, PodSketch, cluster

FIRST = Prompt([1, 2, 3, 4], 64)
NEXT_TURN = Prompt([1, 2, 3, 4, 5, 6, 7, 8], 128)
OTHER = Prompt([1, 20], 64)
PODS = ("a", "b", "c")


def test_a_pod_has_what_it_was_sent() -> None:
    prefixes = PromptPrefixes()
    assert prefixes.find(KEY, FIRST, PODS) == {}
    prefixes.record(KEY, "a", FIRST)
    prefixes.record(KEY, "b", OTHER)
    assert prefixes.find(KEY, NEXT_TURN, PODS) == {"a": 0.5, "b": 0.125}
    assert prefixes.find("default/other@0", NEXT_TURN, PODS) == {}


def test_tells_tokens_sent_and_cached() -> None:
    prefixes, told = PromptPrefixes(), list[tuple[str, int, int]]()
    prefixes.on_sent = lambda *sent: told.append(sent)
    for pod, prompt in (("a", FIRST), ("a", NEXT_TURN), ("b", NEXT_TURN)):
        prefixes.record(KEY, pod, prompt)
    assert told == [(KEY, 64, 0), (KEY, 128, 64), (KEY, 128, 0)]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(["at", KEY, "a", "host|-|1000000|100"], id="to-the-host"),
        pytest.param(["at", KEY, "a", False], id="removed"),
        pytest.param(["gone", "a"], id="the-pod-has-left"),
    ],
)
def test_is_forgotten_with_the_model(change: list[Any]) -> None:
    state = cluster(PodSketch("a", "warm"), PodSketch("b", "warm"))
    for pod in ("a", "b"):
        state.prefixes.record(KEY, pod, FIRST)
    ChangeApplier(state).apply(2, [change])
    assert state.prefixes.find(KEY, FIRST, PODS) == {"b": 1.0}


def test_is_forgotten_at_a_snapshot() -> None:
    state = ClusterState()
    state.prefixes.record(KEY, "a", FIRST)
    state.clear()
    assert state.prefixes.find(KEY, FIRST, PODS) == {}


def test_memory_is_bounded_by_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_prefixes, "_KEPT_TOKENS", 16 * 6)
    prefixes = PromptPrefixes()
    prefixes.record(KEY, "a", FIRST)
    prefixes.record(KEY, "a", Prompt([10, 11, 12, 13], 64))
    assert prefixes.find(KEY, FIRST, PODS) == {"a": 0.5}  # its end was forgotten
    assert prefixes.find(KEY, Prompt([10, 11, 12, 13], 64), PODS) == {"a": 1.0}


def test_memory_is_bounded_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_prefixes, "_MAX_BLOCKS", 10)
    prefixes = PromptPrefixes()
    for pod in ("a", "b", "a", "c"):
        prefixes.record(KEY, pod, FIRST)
    assert prefixes.find(KEY, FIRST, PODS) == {"a": 1.0, "c": 1.0}


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), max_size=20))
def test_with_a_block_all_before_it_are_kept(paths: list[list[int]]) -> None:
    kept = KeptBlocks()
    prompts = [[hash(tuple(path[: end + 1])) for end in range(len(path))] for path in paths]
    for prompt in prompts:
        kept.keep(prompt, 7)
        assert len(kept) <= 7
        assert kept.held(prompt) == len(prompt)
    for prompt in prompts:
        assert [block in kept for block in prompt] == [
            at < kept.held(prompt) for at in range(len(prompt))
        ]
