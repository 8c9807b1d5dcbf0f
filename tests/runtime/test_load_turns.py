"""Which load of a pod is next: shortest and most wanted first, within bounds; their threads."""

from hypothesis import given
from hypothesis import strategies as st

from registry.domain.model import ModelName, ModelSpec
from runtime.loading.load_queue import MAX_AGE, Load, LoadTurns
from runtime.storage.load_priority import LoadTicket


class Turns:
    """Turns in virtual time, and the loads in the order of their starts."""

    def __init__(self, max_concurrent: int = 1) -> None:
        self.now_s = 0.0
        self.turns = LoadTurns(lambda: self.now_s, max_concurrent)
        self.loads: dict[str, Load[None]] = {}
        self.started: list[str] = []

    def enter(
        self,
        name: str,
        expected_s: float = 1.0,
        *,
        waiters: int = 1,
        is_preload: bool = False,
        due_s: float | None = None,
    ) -> Load[None]:
        load = self.loads[name] = Load(
            ModelSpec(ModelName("default", name), "s3://bucket/m"),
            0,
            is_preload,
            self.now_s,
            None,
            ticket=LoadTicket(is_urgent=not is_preload),
            waiters=waiters,
        )
        if due_s is not None:
            load.ticket.expect_by(due_s)
        self.turns.enter(load, expected_s, lambda: self.started.append(name))
        return load

    def end(self, name: str) -> None:
        self.turns.leave(self.loads[name])


def test_as_many_loads_as_allowed_run_at_once() -> None:
    turns = Turns(2)
    for name in "abc":
        turns.enter(name)
    assert turns.started == ["a", "b"]
    turns.end("a")
    assert turns.started == ["a", "b", "c"]


def test_the_shortest_load_per_waiting_request_is_next() -> None:
    turns = Turns()
    turns.enter("running", 1.0)
    turns.enter("long", 4.0)
    turns.enter("wanted", 4.0, waiters=5)
    turns.enter("short", 1.0)
    for name in ("running", "wanted", "short"):
        turns.end(name)
    assert turns.started == ["running", "wanted", "short", "long"]


def test_due_preloads_come_between_urgent_loads_and_others_by_their_time() -> None:
    turns = Turns()
    turns.enter("running")
    turns.enter("preload", 0.1, is_preload=True)
    turns.enter("due late", 0.1, is_preload=True, due_s=9.0)
    turns.enter("due soon", 5.0, is_preload=True, due_s=3.0)
    turns.enter("urgent", 5.0)
    for name in ("running", "urgent", "due soon", "due late"):
        turns.end(name)
    assert turns.started == ["running", "urgent", "due soon", "due late", "preload"]


def test_the_earliest_time_counts_and_changes_the_order_of_waiting_loads() -> None:
    turns = Turns()
    turns.enter("running")
    turns.enter("first", is_preload=True, due_s=5.0)
    second = turns.enter("second", is_preload=True, due_s=7.0)
    second.ticket.expect_by(3.0)
    second.ticket.expect_by(6.0)
    for name in ("running", "second"):
        turns.end(name)
    assert turns.started == ["running", "second", "first"]


def test_equal_loads_start_in_the_order_of_arrival() -> None:
    turns = Turns()
    for name in "abcd":
        turns.enter(name)
    for name in "abc":
        turns.end(name)
    assert turns.started == ["a", "b", "c", "d"]


def test_a_long_load_is_next_once_it_has_waited_for_ten_times_its_time() -> None:
    turns = Turns()
    turns.enter("short-0", 1.0)
    turns.enter("long", 3.0)
    for number in range(100):
        turns.enter(f"short-{number + 1}", 1.0)
        turns.now_s += 1.0
        turns.end(turns.started[-1])
        if "long" in turns.started:
            break
    assert 3.0 * MAX_AGE <= turns.now_s <= 3.0 * MAX_AGE + 2.0


def test_a_running_long_load_does_not_block_a_short_one() -> None:
    turns = Turns()
    turns.enter("checkpoint", 60.0)
    turns.enter("embedding", 0.2)
    turns.enter("another", 0.2)
    assert turns.started == ["checkpoint", "embedding"]


def test_preloads_come_last_and_never_block_a_load_that_a_request_waits_for() -> None:
    turns = Turns()
    turns.enter("running preload", is_preload=True)
    turns.enter("waiting preload", 0.1, is_preload=True)
    turns.enter("urgent", 5.0)
    turns.enter("next urgent", 5.0)
    assert turns.started == ["running preload", "urgent"]
    turns.end("urgent")
    turns.end("running preload")
    assert turns.started == ["running preload", "urgent", "next urgent"]
    turns.end("next urgent")
    assert turns.started[-1] == "waiting preload"


def test_an_old_preload_starts_beside_urgent_loads() -> None:
    turns = Turns()
    turns.enter("urgent")
    turns.enter("preload", is_preload=True)
    turns.now_s = MAX_AGE + 1.0
    turns.turns.refresh()
    assert turns.started == ["urgent", "preload"]


def test_a_preload_that_a_request_joins_is_urgent() -> None:
    turns = Turns()
    turns.enter("running", is_preload=True)
    load = turns.enter("joined", is_preload=True)
    load.ticket.prioritise()
    turns.turns.refresh()
    assert turns.started == ["running", "joined"]


def test_a_load_that_leaves_the_queue_gets_no_turn() -> None:
    turns = Turns()
    for name in "abc":
        turns.enter(name)
    turns.end("b")
    turns.end("a")
    assert turns.started == ["a", "c"]


@given(
    st.lists(st.tuples(st.floats(0.01, 50.0), st.integers(0, 9), st.booleans()), max_size=25),
    st.integers(1, 4),
)
def test_every_load_gets_its_turn(
    loads: list[tuple[float, int, bool]], max_concurrent: int
) -> None:
    turns = Turns(max_concurrent)
    for number, (expected_s, waiters, is_preload) in enumerate(loads):
        turns.enter(str(number), expected_s, waiters=waiters, is_preload=is_preload)
    for at in range(len(loads)):
        turns.now_s += 0.5
        turns.end(turns.started[at])
    assert sorted(turns.started) == sorted(turns.loads)
