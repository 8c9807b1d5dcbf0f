import pytest

from common.pod_responses import parse_server_timing


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("load;dur=5, infer;dur=0.125", {"load": 5, "infer": 0.125}),
        ("infer;dur=1.5;desc=x, load; desc=y; dur=2", {"infer": 1.5, "load": 2}),
        ("odd, bad;dur=?, none;dur=, a;dur=nan, b;dur=inf, c;dur=1", {"c": 1}),
        ("", {}),
    ],
    ids=["plain", "other parameters", "without a duration", "empty"],
)
def test_durations_are_read_by_name(value: str, expected: dict[str, float]) -> None:
    assert parse_server_timing(value) == expected
