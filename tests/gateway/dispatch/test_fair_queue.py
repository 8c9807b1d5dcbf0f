"""The waiting room: tenants take turns, urgency inside a tenant, bounded by its owner."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.fair_queue import FairQueue, QueueKey, queue_key


def room(*places: QueueKey) -> FairQueue:
    waiting = FairQueue()
    for place in places:
        waiting.add(place)
    return waiting


def serve_all(waiting: FairQueue) -> list[QueueKey]:
    """Serve one head at a time, as a pod with one slot would."""
    served = []
    while waiting:
        head = next(waiting.heads())
        waiting.remove(head)
        waiting.end_turn(head.tenant)
        served.append(head)
    return served


def test_one_model_is_served_in_order_of_arrival() -> None:
    places = [queue_key(tenant="a", model="m", sequence=n) for n in (2, 1, 3)]
    assert [place.sequence for place in serve_all(room(*places))] == [1, 2, 3]


def test_priority_comes_before_deadline_before_arrival() -> None:
    plain = queue_key(tenant="a", model="m", sequence=1)
    urgent = queue_key(tenant="a", model="m", sequence=2, deadline_s=5.0)
    important = queue_key(tenant="a", model="m", sequence=3, priority=1)
    assert serve_all(room(plain, urgent, important)) == [important, urgent, plain]


def test_tenants_take_turns_regardless_of_their_numbers_of_requests() -> None:
    many = [queue_key(tenant="loud", model="m", sequence=n) for n in range(4)]
    few = [queue_key(tenant="quiet", model="m", sequence=10 + n) for n in range(2)]
    served = [place.tenant for place in serve_all(room(*many, *few))]
    assert served == ["loud", "quiet", "loud", "quiet", "loud", "loud"]


def test_turns_go_by_tenant_not_by_model() -> None:
    places = [queue_key(tenant="loud", model=f"m{n}", sequence=n) for n in range(3)]
    places.append(queue_key(tenant="quiet", model="m", sequence=9))
    served = [place.tenant for place in serve_all(room(*places))]
    assert served == ["loud", "quiet", "loud", "loud"]


def test_the_most_urgent_model_of_a_tenant_comes_first() -> None:
    late = queue_key(tenant="a", model="x", sequence=1, deadline_s=9.0)
    soon = queue_key(tenant="a", model="y", sequence=2, deadline_s=1.0)
    assert list(room(late, soon).heads()) == [soon, late]


def test_a_tenant_with_an_empty_queue_loses_its_turn() -> None:
    waiting = room(queue_key(tenant="a", model="m", sequence=1))
    serve_all(waiting)
    waiting.add(queue_key(tenant="b", model="m", sequence=2))
    waiting.add(queue_key(tenant="a", model="m", sequence=3))
    assert [place.tenant for place in serve_all(waiting)] == ["b", "a"]


def test_a_requeued_request_has_its_old_position() -> None:
    first, second = (queue_key(tenant="a", model="m", sequence=n) for n in (1, 2))
    waiting = room(first, second)
    waiting.remove(first)
    waiting.add(first)
    assert next(waiting.heads()) is first


def test_removing_an_unknown_key_returns_false() -> None:
    place = queue_key(tenant="a", model="m", sequence=1)
    waiting = room(place)
    assert waiting.remove(place)
    assert not waiting.remove(place)
    assert len(waiting) == 0
    assert waiting.depth("a", "m") == 0


tickets = st.lists(
    st.builds(
        queue_key,
        tenant=st.sampled_from("abc"),
        model=st.sampled_from("mn"),
        sequence=st.integers(0, 1000),
        priority=st.integers(-1, 1),
        deadline_s=st.none() | st.floats(0, 10),
    ),
    unique_by=lambda place: place.sequence,
    max_size=12,
)


@given(tickets)
def test_every_request_is_served_once(places: list[QueueKey]) -> None:
    served = serve_all(room(*places))
    assert sorted(place.sequence for place in served) == sorted(p.sequence for p in places)


@given(tickets)
def test_no_tenant_waits_for_more_than_one_turn_of_each_other_tenant(
    places: list[QueueKey],
) -> None:
    served = [place.tenant for place in serve_all(room(*places))]
    for tenant in set(served):
        turns = [n for n, name in enumerate(served) if name == tenant]
        between = [served[a + 1 : b] for a, b in pairwise(turns)]
        assert all(len(names) == len(set(names)) for names in between)


@given(tickets)
def test_depth_and_size_agree(places: list[QueueKey]) -> None:
    waiting = room(*places)
    assert len(waiting) == sum(waiting.depth(t, m) for t in "abc" for m in "mn")
