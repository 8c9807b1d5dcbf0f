"""Queued requests that can no longer be in time: after all that can, for a bounded time."""

import itertools
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.admission_queue import LATE_DEADLINES, STARVED_SHARE, AdmissionQueue
from gateway.dispatch.pending_placement import PendingPlacement
from gateway.routing.route_request import IncomingRequest
from registry.domain.cluster import ChangeApplier, ClusterState
from registry.domain.model import ModelName, ModelPolicy, ModelSpec
from tests.gateway.asynchronous import run_async
from tests.gateway.cluster_states import NOW_S, PodSketch, cluster
from tests.gateway.end_to_end.test_freed_application_requests import APP, ASKED, VARIANT, asking
from tests.gateway.placer_harness import eventually
from tests.servers import RedisServer

HOLD_S = 0.3
TIMEOUT_S = 60.0
MEASURES = {"infer": HOLD_S, "preprocess": 0.0, "postprocess": 0.0}


@dataclass
class Queue:
    """A queue with a clock, of models that are warm and take `HOLD_S`."""

    by_deadline: bool = True
    measures: dict[str, float] = field(default_factory=lambda: dict(MEASURES))
    now_s: float = NOW_S

    def __post_init__(self) -> None:
        self.state: ClusterState = cluster(PodSketch("pod-a"))
        self.queue: AdmissionQueue[PendingPlacement] = AdmissionQueue(
            self.state, by_deadline=self.by_deadline
        )
        self.sequence = itertools.count()

    def add(
        self,
        id_: str = "",
        *,
        due_in_s: float | None = None,
        deadline_in_s: float | None = None,
        model: str = "m",
        tenant: str = "default",
        **policy: Any,
    ) -> PendingPlacement:
        """Queue a request that arrives now."""
        policy = {"queue_depth": 100_000, "queue_timeout_s": TIMEOUT_S, **policy}
        spec = ModelSpec(ModelName(tenant, model), "file:///m", policy=ModelPolicy(**policy))
        changes: list[list[Any]] = [["at", spec.key, "pod-a", f"device|-|{int(NOW_S * 1000)}|1"]]
        changes += [["samples", spec.key, name, [value]] for name, value in self.measures.items()]
        if not self.state.holders(spec.key):
            ChangeApplier(self.state).apply(self.state.version + 1, changes)
        number = next(self.sequence)
        request = IncomingRequest(id_ or f"{number}", spec.name, self.now_s, 0.0, number)
        request.due_s = None if due_in_s is None else self.now_s + due_in_s
        request.deadline_s = None if deadline_in_s is None else self.now_s + deadline_in_s
        placement = PendingPlacement(request)
        placement.spec = spec
        self.queue.add(placement, self.now_s)
        return placement

    def serve(self) -> PendingPlacement:
        """The next request, which is placed."""
        head = self.queue.heads(self.now_s)[0]
        self.queue.take(head, self.now_s)
        self.queue.remove(head)
        return head

    def serve_all(self) -> list[str]:
        """Ids of all, in the order in which a pod with one slot would serve them now."""
        return [self.serve().arrival.id for _ in range(self.queue.size)]


def test_a_request_that_can_no_longer_be_in_time_comes_after_one_that_can() -> None:
    queue = Queue()
    queue.add("late", due_in_s=HOLD_S - 0.01)
    queue.add("in time", due_in_s=HOLD_S + 0.01)
    assert queue.serve_all() == ["in time", "late"]


def test_also_after_one_of_another_model() -> None:
    queue = Queue()
    queue.add("late", due_in_s=0.1, model="m")
    queue.add("in time", due_in_s=9.0, model="n")
    queue.add("no deadline", model="o")
    assert queue.serve_all() == ["in time", "no deadline", "late"]


def test_late_requests_are_served_in_the_order_of_their_deadlines() -> None:
    queue = Queue()
    for due_in_s in (0.2, 0.1, 5.0, 0.15):
        queue.add(f"{due_in_s}", due_in_s=due_in_s)
    assert queue.serve_all() == ["5.0", "0.1", "0.15", "0.2"]


def test_requests_become_late_as_time_passes() -> None:
    queue = Queue()
    first = queue.add(due_in_s=1.0)
    second = queue.add(due_in_s=2.0)
    assert queue.queue.heads(queue.now_s) == [first]
    queue.now_s += 0.8
    assert queue.queue.heads(queue.now_s) == [second]
    queue.now_s += 1.0
    assert queue.queue.heads(queue.now_s) == [first]


def test_priority_comes_before_lateness() -> None:
    queue = Queue()
    queue.add("late", due_in_s=0.1, priority=1, model="m")
    queue.add("in time", due_in_s=9.0, model="n")
    assert queue.serve_all() == ["late", "in time"]


def test_a_tenants_turn_does_not_depend_on_lateness() -> None:
    queue = Queue()
    for number in range(2):
        queue.add(f"late {number}", due_in_s=0.1, tenant="a")
        queue.add(f"in time {number}", due_in_s=9.0, tenant="b")
    assert queue.serve_all() == ["late 0", "in time 0", "late 1", "in time 1"]


def test_hard_deadlines_and_arrival_order_do_not_move() -> None:
    hard = Queue()
    hard.add("first", deadline_in_s=0.1)
    hard.add("second", deadline_in_s=9.0)
    assert hard.serve_all() == ["first", "second"]
    by_arrival = Queue(by_deadline=False)
    by_arrival.add("first", due_in_s=0.1)
    by_arrival.add("second", due_in_s=9.0)
    assert by_arrival.serve_all() == ["first", "second"]


def test_a_guessed_time_makes_no_request_late() -> None:
    queue = Queue(measures={})
    queue.add("soon", due_in_s=0.01)
    queue.add("later", due_in_s=9.0)
    assert queue.queue.heads(queue.now_s)[0].arrival.id == "soon"
    queue.now_s += 0.02
    assert queue.queue.heads(queue.now_s)[0].arrival.id == "later"


@pytest.mark.parametrize(
    ("timeout_s", "until_s"),
    [
        pytest.param(3600.0, LATE_DEADLINES * 0.1, id="its-deadline-many-times"),
        pytest.param(1.0, STARVED_SHARE * 1.0, id="before-its-queue-timeout"),
    ],
)
def test_a_late_request_counts_as_timely_again(timeout_s: float, until_s: float) -> None:
    queue = Queue()
    late = queue.add(due_in_s=0.1, queue_timeout_s=timeout_s)
    queue.now_s += until_s - 0.01
    other = queue.add(due_in_s=9.0)
    assert queue.queue.heads(queue.now_s) == [other]
    queue.now_s += 0.02
    assert queue.queue.heads(queue.now_s) == [late]
    assert queue.queue.heads(queue.now_s) == [late]


def test_a_refused_reservation_returns_a_late_request_to_its_place() -> None:
    queue = Queue()
    late = queue.add(due_in_s=0.1)
    assert queue.queue.heads(queue.now_s) == [late]
    queue.queue.take(late, queue.now_s)
    in_time = queue.add(due_in_s=9.0)
    queue.queue.requeue(late)
    assert queue.queue.heads(queue.now_s) == [in_time]
    queue.queue.take(late, queue.now_s)
    queue.now_s += TIMEOUT_S
    assert queue.queue.heads(queue.now_s) == [in_time]
    queue.queue.requeue(late)
    assert queue.queue.heads(queue.now_s) == [late]


times_s = st.none() | st.sampled_from([0.1, 0.5, 1.0, 5.0])
steps = st.lists(
    st.tuples(times_s, st.sampled_from("mn"), st.integers(0, 1), st.sampled_from([0.0, 0.2, 3.0])),
    max_size=40,
)


@given(steps)
def test_every_request_is_served_once_and_counts_agree(
    steps: list[tuple[float | None, str, int, float]],
) -> None:
    queue, served = Queue(), []
    for due_in_s, model, priority, passes_s in steps:
        queue.add(due_in_s=due_in_s, model=model, priority=priority)
        queue.now_s += passes_s
        queue.queue.heads(queue.now_s)
        assert queue.queue.size == len(queue.queue.waiting)
        assert sum(queue.state.queue_depths.values()) == queue.queue.size
        if passes_s:
            served.append(queue.serve())
    served += [queue.serve() for _ in range(queue.queue.size)]
    assert sorted(each.arrival.sequence for each in served) == list(range(len(steps)))
    assert not queue.queue.waiting
    assert not queue.state.queue_depths


@given(steps)
def test_none_that_has_waited_for_its_bound_is_passed_by_a_later_one(
    steps: list[tuple[float | None, str, int, float]],
) -> None:
    queue = Queue()
    for due_in_s, model, _, passes_s in steps:
        queue.add(due_in_s=due_in_s, model=model)
        queue.now_s += 4 * passes_s
        served = queue.serve().arrival if passes_s else None
        for each in queue.queue.waiting.values():
            waiting = each.arrival
            if served is None or waiting.due_s is None:
                continue
            time_s = waiting.due_s - waiting.arrival_s
            bound_s = min(LATE_DEADLINES * time_s, STARVED_SHARE * TIMEOUT_S)
            if queue.now_s - waiting.arrival_s > bound_s:
                assert served.due_s is not None
                assert served.due_s <= waiting.due_s


def test_memory_does_not_grow_with_requests_that_left_long_before_their_deadlines() -> None:
    queue = Queue()
    waiting = [queue.add(due_in_s=3600.0) for _ in range(10)]
    tracemalloc.start()
    for _ in range(2000):
        waiting.append(queue.add(due_in_s=3600.0))
        queue.queue.remove(waiting.pop(0))
    grown_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown_bytes < 100_000
    assert queue.queue.size == 10


def calls_of(work: Callable[[], object]) -> int:
    """The calls of Python functions that it makes."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def calls_per_request(queued: int) -> float:
    queue = Queue()
    for _ in range(queued):
        queue.add(due_in_s=1.0)
    queue.now_s += 2.0
    queue.add(due_in_s=9.0)
    return calls_of(queue.serve_all) / queued


def test_the_cost_of_a_late_request_does_not_depend_on_how_many_there_are() -> None:
    assert calls_per_request(10_000) < 1.05 * calls_per_request(500)


@run_async
async def test_a_live_request_to_an_application_that_serves_late_has_a_soft_deadline(
    redis: RedisServer, pool: str
) -> None:
    async with asking(redis, pool, deadline_s=0.001) as client:
        placer = client.app.pools.owner_of(APP.name).context.placer
        state, key = client.state, VARIANT.key
        ChangeApplier(state).apply(state.version + 1, [["at", key, "pod-a", "disk|-|0|100"]])
        client.state.pods["pod-a"].set_counts(4, 4)
        client.writer.write(ASKED)
        await eventually(lambda: VARIANT.name in placer.queue_stats())
        await eventually(lambda: placer.queue_stats()[VARIANT.name].starved == 1)
        client.state.pods["pod-a"].set_counts(0, 0)
        assert (await client.read())[0].startswith(b"HTTP/1.1 200 ")
