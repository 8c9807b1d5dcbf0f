"""The fair queue: turns of tenants, urgency within a tenant, models that need a load, bounds."""

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.pending_placement import (
    FairQueue,
    QueueKey,
    dispatch_order,
    is_ready,
    queue_key,
)
from gateway.routing.cold_start import MAX_LOADS_WAITED

keys = st.builds(
    queue_key,
    tenant=st.sampled_from("abc"),
    model=st.sampled_from("mno"),
    sequence=st.integers(0, 1000),
    priority=st.integers(-1, 1),
    deadline_s=st.none() | st.floats(0, 10),
)


def filled(*keys: QueueKey) -> FairQueue:
    queue = FairQueue()
    for key in keys:
        queue.add(key)
    return queue


def heads(queue: FairQueue) -> list[QueueKey]:
    return list(dispatch_order(queue.heads(0.0), lambda _: False))


def serve(queue: FairQueue, took_s: float = 0.01) -> QueueKey:
    head = heads(queue)[0]
    queue.remove(head)
    queue.end_turn(head.tenant, took_s, 0.0)
    return head


def serve_all(queue: FairQueue) -> list[QueueKey]:
    """Serve one head at a time, as a pod with one slot would."""
    served = []
    while queue.size:
        served.append(serve(queue))
    return served


def test_one_model_is_served_in_order_of_arrival() -> None:
    keys = [queue_key(tenant="a", model="m", sequence=n) for n in (2, 1, 3)]
    assert [key.sequence for key in serve_all(filled(*keys))] == [1, 2, 3]


def test_priority_comes_before_deadline_before_arrival() -> None:
    plain = queue_key(tenant="a", model="m", sequence=1)
    urgent = queue_key(tenant="a", model="m", sequence=2, deadline_s=5.0)
    important = queue_key(tenant="a", model="m", sequence=3, priority=1)
    assert serve_all(filled(plain, urgent, important)) == [important, urgent, plain]


def test_tenants_take_turns_regardless_of_their_numbers_of_requests() -> None:
    many = [queue_key(tenant="loud", model="m", sequence=n) for n in range(4)]
    few = [queue_key(tenant="quiet", model="m", sequence=10 + n) for n in range(2)]
    served = [key.tenant for key in serve_all(filled(*many, *few))]
    assert served == ["loud", "quiet", "loud", "quiet", "loud", "loud"]


def test_turns_go_by_tenant_not_by_model() -> None:
    keys = [queue_key(tenant="loud", model=f"m{n}", sequence=n) for n in range(3)]
    keys.append(queue_key(tenant="quiet", model="m", sequence=9))
    served = [key.tenant for key in serve_all(filled(*keys))]
    assert served == ["loud", "quiet", "loud", "loud"]


def test_the_most_urgent_model_of_a_tenant_comes_first() -> None:
    late = queue_key(tenant="a", model="x", sequence=1, deadline_s=9.0)
    soon = queue_key(tenant="a", model="y", sequence=2, deadline_s=1.0)
    assert heads(filled(late, soon)) == [soon, late]


def test_a_tenant_with_few_requests_need_not_wait_for_one_that_always_has_some() -> None:
    queue = filled(*[queue_key(tenant="loud", model="m", sequence=n) for n in range(4)])
    served = []
    for number in range(2):
        served.append(serve(queue).tenant)
        queue.add(queue_key(tenant="quiet", model="m", sequence=10 + number))
        served.append(serve(queue).tenant)
    assert served == ["loud", "quiet", "loud", "quiet"]


def test_a_tenant_that_was_served_comes_after_one_that_was_not() -> None:
    queue = filled(queue_key(tenant="a", model="m", sequence=1))
    serve_all(queue)
    queue.add(queue_key(tenant="b", model="m", sequence=2))
    queue.add(queue_key(tenant="a", model="m", sequence=3))
    assert [key.tenant for key in serve_all(queue)] == ["b", "a"]


def test_all_requests_of_a_tenant_that_used_little_come_before_those_of_one_that_used_much() -> (
    None
):
    queue = filled(*[queue_key(tenant="loud", model="m", sequence=n) for n in range(3)])
    for _ in range(10):
        queue.end_turn("loud", 0.1, 0.0)
    for number in range(3):
        queue.add(queue_key(tenant="quiet", model="m", sequence=10 + number))
    assert [key.tenant for key in serve_all(queue)] == ["quiet"] * 3 + ["loud"] * 3


def test_a_request_that_takes_long_counts_as_several_turns() -> None:
    queue = filled(
        *[queue_key(tenant=name, model="m", sequence=n) for n in range(4) for name in ("a", "b")]
    )
    took_s = {"a": 0.3, "b": 0.1}
    served = [serve(queue, took_s[heads(queue)[0].tenant]).tenant for _ in range(5)]
    assert served == ["a", "b", "b", "b", "a"]


def test_a_requeued_request_has_its_old_position() -> None:
    first, second = (queue_key(tenant="a", model="m", sequence=n) for n in (1, 2))
    queue = filled(first, second)
    queue.remove(first)
    queue.add(first)
    assert heads(queue)[0] is first


def test_removing_an_unknown_key_returns_false() -> None:
    key = queue_key(tenant="a", model="m", sequence=1)
    queue = filled(key)
    assert queue.remove(key)
    assert not queue.remove(key)
    assert queue.size == 0
    assert not queue.of("a", "m")


key_lists = st.lists(
    st.builds(
        queue_key,
        tenant=st.sampled_from("abc"),
        model=st.sampled_from("mn"),
        sequence=st.integers(0, 1000),
        priority=st.integers(-1, 1),
        deadline_s=st.none() | st.floats(0, 10),
    ),
    unique_by=lambda key: key.sequence,
    max_size=12,
)


@given(key_lists)
def test_every_request_is_served_once(keys: list[QueueKey]) -> None:
    served = serve_all(filled(*keys))
    assert sorted(key.sequence for key in served) == sorted(key.sequence for key in keys)


@given(key_lists)
def test_no_tenant_waits_for_more_than_one_turn_of_each_other_tenant(keys: list[QueueKey]) -> None:
    served = [key.tenant for key in serve_all(filled(*keys))]
    for tenant in set(served):
        turns = [n for n, name in enumerate(served) if name == tenant]
        between = [served[a + 1 : b] for a, b in pairwise(turns)]
        assert all(len(names) == len(set(names)) for names in between)


@given(key_lists)
def test_depth_and_size_agree(keys: list[QueueKey]) -> None:
    queue = filled(*keys)
    assert queue.size == sum(len(queue.of(t, m)) for t in "abc" for m in "mn")


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
