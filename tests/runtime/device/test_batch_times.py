"""The batch size derived from live batches and stored profiles."""

import pytest

from registry.domain.pod import Profile, ProfilePoint, best_rows
from runtime.device.batch_times import (
    INITIAL_MAX_ROWS,
    MAX_ROWS,
    MAX_SIZES,
    MIN_FULL_BATCHES,
    BatchTimes,
    best_max_rows,
)
from runtime.profiling import batch_sizes, has_stopped_growing

KEY = "default/m@1"


def points(**latencies_ms: float) -> tuple[ProfilePoint, ...]:
    """Milliseconds by names such as `n8`."""
    return tuple(ProfilePoint(int(name[1:]), ms / 1000) for name, ms in latencies_ms.items())


@pytest.mark.parametrize(
    ("measured", "best", "most"),
    [
        pytest.param((), 1, INITIAL_MAX_ROWS, id="nothing"),
        pytest.param(points(n1=10), 1, INITIAL_MAX_ROWS, id="one-size"),
        pytest.param(points(n1=10, n2=20, n4=40), 1, 1, id="no-gain"),
        pytest.param(points(n1=10, n4=12, n8=14), 8, 16, id="still-growing"),
        pytest.param(points(n1=10, n8=14, n16=27, n32=60), 8, 8, id="found"),
        pytest.param(points(n1=10, n64=20), 64, MAX_ROWS, id="largest"),
        pytest.param(points(n1=0.5, n64=1), 64, 2 * MAX_ROWS, id="short-ones-beyond-it"),
        pytest.param(points(n1=0.5, n128=3), 128, 128, id="no-longer-short"),
        pytest.param(points(n1=10, n256=20), 256, 256, id="stored-beyond-the-largest"),
    ],
)
def test_batches_grow_while_throughput_does(
    measured: tuple[ProfilePoint, ...], best: int, most: int
) -> None:
    assert best_rows(measured) == best
    assert best_max_rows(measured) == most


def test_a_size_needs_a_few_samples() -> None:
    times = BatchTimes()
    for _ in range(2):
        times.observe(KEY, 16, 0.01, 0.0)
    assert times.take_updates("cpu") == []
    times.observe(KEY, 16, 0.02, 0.0)
    (profile,) = times.take_updates("cpu")
    assert profile == Profile(KEY, "cpu", (ProfilePoint(16, 0.01),), source="in-service")
    assert times.take_updates("cpu") == []
    assert times.longest_batch_s(KEY) == 0.01


def test_live_times_refine_a_stored_profile() -> None:
    times = BatchTimes()
    times.use_profile(Profile(KEY, "cpu", (ProfilePoint(1, 1.0, 7), ProfilePoint(2, 1.1, 9))))
    for _ in range(3):
        times.observe(KEY, 1, 0.5, 0.0)
    (profile,) = times.take_updates("cpu")
    assert profile.points == (ProfilePoint(1, 0.5, 7), ProfilePoint(2, 1.1, 9))
    assert times.max_rows(KEY) == 1


def test_live_times_keep_what_only_a_profile_measures() -> None:
    times = BatchTimes()
    stored = ProfilePoint(1, 1.0, 7, throughput_rps=1.1, sm_utilization_pct=60.0)
    times.use_profile(Profile(KEY, "cpu", (stored,)))
    for _ in range(3):
        times.observe(KEY, 1, 0.5, 0.0)
    [profile] = times.take_updates("cpu")
    assert profile.points == (ProfilePoint(1, 0.5, 7, sm_utilization_pct=60.0),)


def test_of_many_sizes_the_least_recently_observed_is_forgotten() -> None:
    times = BatchTimes()
    times.use_profile(Profile(KEY, "cpu", points(n1=10)))
    for rows in range(1, MAX_SIZES + 3):
        for _ in range(3):
            times.observe(KEY, rows, 0.001 * rows, float(rows))
    [profile] = times.take_updates("cpu")
    sizes = [each.rows for each in profile.points]
    assert sizes == [1, *range(3, MAX_SIZES + 3)]
    assert [each.latency_s for each in profile.points] == [
        0.01,
        *(0.001 * rows for rows in sizes[1:]),
    ]


def test_memory_limits_the_batch_size() -> None:
    times = BatchTimes()
    times.use_profile(Profile(KEY, "cpu", points(n1=10, n2=11, n4=12), "memory"))
    assert times.max_rows(KEY) == 4
    times.record_out_of_memory(KEY, 4)
    assert times.max_rows(KEY) == 2


def serve(times: BatchTimes, rows: int, batches: int) -> None:
    for _ in range(batches):
        times.observe(KEY, rows, 0.01, 0.0)


def test_larger_batches_are_tried_again_after_the_device_was_full() -> None:
    times = BatchTimes()
    times.record_out_of_memory(KEY, 8)
    serve(times, 4, MIN_FULL_BATCHES - 1)
    assert times.max_rows(KEY) == 4
    serve(times, 4, 1)
    assert times.max_rows(KEY) == 8


def test_each_failure_doubles_the_batches_until_the_next_attempt() -> None:
    times = BatchTimes()
    for _ in range(2):
        times.record_out_of_memory(KEY, 8)
    serve(times, 4, 2 * MIN_FULL_BATCHES - 1)
    assert times.max_rows(KEY) == 4
    serve(times, 4, 1)
    assert times.max_rows(KEY) == 8


def test_smaller_batches_say_nothing_about_memory() -> None:
    times = BatchTimes()
    times.record_out_of_memory(KEY, 8)
    serve(times, 1, 2 * MIN_FULL_BATCHES)
    times.observe(KEY, 8, 0.001, 0.0)
    assert times.max_rows(KEY) <= 4


def test_forgotten_models_start_from_the_default() -> None:
    times = BatchTimes()
    times.use_profile(Profile(KEY, "cpu", points(n1=10, n2=20)))
    times.forget(KEY)
    assert times.max_rows(KEY) == INITIAL_MAX_ROWS
    assert times.keys() == set()


@pytest.mark.parametrize(
    ("most", "expected"),
    [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])],
)
def test_profiled_sizes_double_up_to_the_largest(most: int, expected: list[int]) -> None:
    assert batch_sizes(most) == expected


def test_growth_stops_after_two_sizes_without_gain() -> None:
    assert not has_stopped_growing(points(n1=10, n2=19))
    assert not has_stopped_growing(points(n1=10, n2=25, n4=30))
    assert has_stopped_growing(points(n1=10, n2=25, n4=55))
