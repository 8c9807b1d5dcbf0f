"""Work on the shared cores of a simulated machine."""

import pytest

from load.simulator.event_queue import EventQueue
from load.simulator.pods.shared_processors import SharedCores


def ends_of(cores: float, *work: tuple[float, float, float]) -> list[float]:
    """When each piece of work ends, given as (begin, time alone, demand)."""
    events = EventQueue()
    shared = SharedCores(events, cores)
    ended: dict[int, float] = {}
    for number, (begun_s, alone_s, demand) in enumerate(work):
        events.at(
            begun_s,
            lambda at: shared.run(at[1], lambda n: ended.setdefault(n, events.now_s), at[0], at[2]),
            (number, alone_s, demand),
        )
    while events.run_some(1000, until=lambda: len(ended) == len(work)):
        pass
    return [ended[number] for number in range(len(work))]


def test_work_that_fits_takes_its_own_time() -> None:
    assert ends_of(2, (0.0, 1.0, 1.0), (0.5, 1.0, 1.0)) == pytest.approx([1.0, 1.5])


def test_equal_work_shares_the_cores_equally() -> None:
    assert ends_of(1, (0.0, 1.0, 1.0), (0.0, 1.0, 1.0)) == pytest.approx([2.0, 2.0])
    assert ends_of(2, *[(0.0, 1.0, 1.0)] * 3) == pytest.approx([1.5, 1.5, 1.5])


def test_work_that_begins_later_slows_down_what_runs() -> None:
    # Alone until 0.5, then at half speed: the first has 0.5 left, the second 1.0.
    assert ends_of(1, (0.0, 1.0, 1.0), (0.5, 1.0, 1.0)) == pytest.approx([1.5, 2.0])


def test_small_demands_are_met_first() -> None:
    # Of one core the first needs a quarter: the second has the other three quarters.
    assert ends_of(1, (0.0, 1.0, 0.25), (0.0, 0.75, 1.0)) == pytest.approx([1.0, 1.0])


def test_several_threads_count_as_several() -> None:
    # Three threads on two cores: two thirds of a core each.
    assert ends_of(2, (0.0, 1.0, 2.0), (0.0, 1.0, 1.0)) == pytest.approx([1.5, 1.5])


def test_no_work_takes_no_time() -> None:
    assert ends_of(1, (1.0, 0.0, 1.0)) == pytest.approx([1.0])
