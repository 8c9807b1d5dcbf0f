from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.inference_service.durations import parse_duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("0", 0.0, id="bare-zero"),
        pytest.param("0s", 0.0, id="zero"),
        pytest.param("150ms", 0.15, id="milliseconds"),
        pytest.param("2s", 2.0, id="seconds"),
        pytest.param("10m", 600.0, id="minutes"),
        pytest.param("1h30m", 5400.0, id="two-units"),
        pytest.param("1.5s", 1.5, id="fraction"),
        pytest.param(".5s", 0.5, id="fraction-without-whole"),
        pytest.param("1.s", 1.0, id="whole-with-point"),
        pytest.param("7us", 7e-6, id="microseconds"),
        pytest.param("7\u00b5s", 7e-6, id="micro-sign"),
        pytest.param("7\u03bcs", 7e-6, id="greek-mu"),
        pytest.param("9ns", 9e-9, id="nanoseconds"),
    ],
)
def test_reads_go_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", " ", "5", "-3s", "+3s", "3 s", "3s ", "s", "1.2.3s", "3d", "3S", "1e3s", "s3", "inf",
     "nan", "\u0663s",
     "9" * 200_000, "0" * 100 + "1s"],
)  # fmt: skip
def test_refuses_other_texts(text: str) -> None:
    with pytest.raises(ValueError, match="a duration such as"):
        parse_duration_s(text)


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 999))
def test_parts_add_up(hours: int, minutes: int, milliseconds: int) -> None:
    expected_s = hours * 3600 + minutes * 60 + milliseconds / 1000
    assert parse_duration_s(f"{hours}h{minutes}m{milliseconds}ms") == pytest.approx(expected_s)
