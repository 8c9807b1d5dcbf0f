"""The order of dispatch: turns, priority, models that need no load, and a bound on waiting."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.dispatch_order import dispatch_order, is_ready
from gateway.dispatch.fair_queue import queue_key
from gateway.routing.cold_start import MAX_LOADS_WAITED

if TYPE_CHECKING:
    from gateway.dispatch.fair_queue import QueueKey

keys = st.builds(
    queue_key,
    tenant=st.sampled_from("abc"),
    model=st.sampled_from("mno"),
    sequence=st.integers(0, 1000),
    priority=st.integers(-1, 1),
    deadline_s=st.none() | st.floats(0, 10),
)


def by_tenant(heads: list[QueueKey]) -> list[list[QueueKey]]:
    return [[head for head in heads if head.tenant == tenant] for tenant in "abc"]


def order(*heads: QueueKey, ready: str = "") -> list[QueueKey]:
    return list(dispatch_order(by_tenant(list(heads)), lambda head: head.model in ready))


def test_a_head_that_needs_a_load_comes_after_those_that_do_not() -> None:
    cold = queue_key(tenant="a", model="m", sequence=1)
    ready = queue_key(tenant="a", model="n", sequence=2)
    assert order(cold, ready, ready="n") == [ready, cold]


def test_priority_comes_before_readiness() -> None:
    ready = queue_key(tenant="a", model="n", sequence=1)
    important = queue_key(tenant="a", model="m", sequence=2, priority=1)
    assert order(ready, important, ready="n") == [important, ready]


def test_among_ready_heads_the_earliest_deadline_is_first() -> None:
    late = queue_key(tenant="a", model="m", sequence=1, deadline_s=9.0)
    soon = queue_key(tenant="a", model="n", sequence=2, deadline_s=1.0)
    assert order(late, soon, ready="mn") == [soon, late]


def test_another_tenants_ready_heads_do_not_take_a_tenants_turn() -> None:
    cold = queue_key(tenant="a", model="m", sequence=9)
    ready = [queue_key(tenant="b", model=model, sequence=1) for model in "no"]
    assert order(cold, *ready, ready="no") == [cold, ready[0], ready[1]]


@given(st.lists(keys, unique_by=lambda key: key.sequence), st.sampled_from(["", "m", "mn"]))
def test_the_order_has_every_head_once_and_does_not_depend_on_theirs(
    heads: list[QueueKey], ready: str
) -> None:
    found = order(*heads, ready=ready)
    assert sorted(found) == sorted(heads)
    assert found == order(*reversed(heads), ready=ready)


@pytest.mark.parametrize(
    ("waited_s", "left_s", "expected"),
    [
        pytest.param(0.0, inf, False, id="new"),
        pytest.param(MAX_LOADS_WAITED * 0.5, inf, True, id="waited-for-ten-loads"),
        pytest.param(MAX_LOADS_WAITED * 0.5 - 0.01, inf, False, id="not-quite"),
        pytest.param(0.0, 0.9, True, id="deadline-is-near"),
        pytest.param(0.0, 0.4, False, id="deadline-is-before-a-load"),
        pytest.param(MAX_LOADS_WAITED * 0.5, 0.4, True, id="waited-and-late"),
        pytest.param(0.0, 10.0, False, id="deadline-is-far"),
        pytest.param(-5.0, inf, False, id="clock-set-back"),
    ],
)
def test_a_head_that_waited_long_or_is_urgent_is_ready(
    waited_s: float, left_s: float, expected: bool
) -> None:
    assert is_ready(waited_s=waited_s, left_s=left_s, load_s=0.5) is expected
