"""Times by the size of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.domain.estimates import MAX_CLASSES, class_bytes, seconds_at_size, size_class


@pytest.mark.parametrize(
    ("body_bytes", "expected"),
    [
        pytest.param(0, 0, id="empty"),
        pytest.param(1024, 0, id="1-KiB"),
        pytest.param(1025, 1, id="above-1-KiB"),
        pytest.param(4096, 1, id="4-KiB"),
        pytest.param(64 << 20, 8, id="64-MiB"),
    ],
)
def test_the_class_of_a_body(body_bytes: int, expected: int) -> None:
    assert size_class(body_bytes) == expected


@given(st.integers(0, 1 << 50))
def test_a_class_holds_its_bodies(body_bytes: int) -> None:
    found = size_class(body_bytes)
    assert body_bytes <= class_bytes(found) or found == MAX_CLASSES - 1
    assert found == 0 or body_bytes > class_bytes(found - 1)


sizes = st.dictionaries(st.integers(1, 1000), st.floats(0.001, 100.0), min_size=1, max_size=6)


@given(sizes, st.integers(1, 2000))
def test_a_time_is_between_those_of_the_next_sizes(measured: dict[int, float], size: int) -> None:
    points = sorted((float(each), seconds) for each, seconds in measured.items())
    found = seconds_at_size(points, size)
    if size in measured:
        assert found == pytest.approx(measured[size])
    below = [seconds for each, seconds in points if each <= size] or [0.0]
    above = [seconds for each, seconds in points if each >= size] or [below[-1]]
    assert min(below[-1], above[0]) - 1e-9 <= found <= max(below[-1], above[0]) + 1e-9


def test_without_measurements_nothing_is_expected() -> None:
    assert seconds_at_size([], 5) == 0.0


def test_below_the_smallest_size_the_time_is_in_proportion() -> None:
    assert seconds_at_size([(64.0, 6.4)], 1) == pytest.approx(0.1)
