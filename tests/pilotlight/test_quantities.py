from __future__ import annotations

import pytest

from pilotlight.errors import InvalidInput
from pilotlight.quantities import format_age, format_bytes, parse_bytes, parse_rate


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("4Gi", 4 * 2**30, id="binary"),
        pytest.param("100MB", 100_000_000, id="decimal"),
        pytest.param("1.5k", 1500, id="fraction"),
        pytest.param("123", 123, id="plain"),
    ],
)
def test_parses_sizes(text: str, expected: int) -> None:
    assert parse_bytes(text, field="--pod-memory") == expected


@pytest.mark.parametrize("text", ["", "-1", "0", "4 apples", "Gi", "1e9", "nan"])
def test_rejects_invalid_sizes_and_quotes_them(text: str) -> None:
    with pytest.raises(InvalidInput, match="--pod-memory must be a positive size") as error:
        parse_bytes(text, field="--pod-memory")
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("100MB/s", 100e6, id="per second"),
        pytest.param("1GBps", 1e9, id="ps"),
        pytest.param("unlimited", None, id="unlimited"),
    ],
)
def test_parses_rates(text: str, expected: float | None) -> None:
    assert parse_rate(text, field="--pod-link-rate") == expected


def test_rejects_invalid_rates() -> None:
    with pytest.raises(InvalidInput, match=r"must be a rate such as 100MB/s, .* was 'fast'"):
        parse_rate("fast", field="--pod-link-rate")


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        pytest.param(0, "0 B", id="nothing"),
        pytest.param(1500, "1.5 kB", id="small"),
        pytest.param(242_041_896, "242 MB", id="t5-small"),
    ],
)
def test_formats_sizes(amount: float, expected: str) -> None:
    assert format_bytes(amount) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-5, "0s"), (0, "0s"), (119.9, "119s"), (125, "2m5s"), (1800, "30m"), (7200, "2h0m"),
        (30_000, "8h"), (172_800, "2d"),
    ],
)  # fmt: skip
def test_formats_ages_as_kubectl(seconds: float, expected: str) -> None:
    assert format_age(seconds) == expected
