"""The one syntax of sizes and rates, and that of durations."""

from collections.abc import Callable
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from common.settings_table import settings_from_fields
from common.sizes import parse_duration_s, parse_rate, parse_size, parse_size_from
from gateway.settings import GatewaySettings
from load.simulator.cluster.sections import Size
from registry.domain.tenant_rules import Quota, parse_rules
from runtime.settings import RuntimeSettings
from workflows.settings import SchedulerSettings

SIZES = [
    ("0", 0), ("1048576", 1 << 20), ("1048576B", 1 << 20), ("12 bytes", 12), ("100MB", 10**8),
    ("100M", 10**8), ("100mb", 10**8), ("100Mi", 100 << 20), ("100MiB", 100 << 20),
    ("4gib", 4 << 30), ("1.5 GiB", 3 << 29), ("1.5k", 1500), ("2T", 2 * 10**12), ("1Pi", 1 << 50),
    ("1e9", 10**9), ("2E", 2 * 10**18), (" 5GB ", 5 * 10**9),
]  # fmt: skip


@pytest.mark.parametrize(("text", "amount"), SIZES)
def test_reads_every_usual_way_to_write_a_size(text: str, amount: int) -> None:
    assert parse_size(text) == amount


@pytest.mark.parametrize(
    "text", ["", "-1", "4 apples", "Gi", "nan", "1.", "0x10", "1,5G", "٣", "i", "1i", "9e30", "10E"]
)
def test_refuses_what_is_no_size_and_quotes_it(text: str) -> None:
    with pytest.raises(ValueError, match="must be a size") as error:
        parse_size(text)
    assert repr(text) in str(error.value)


@given(st.integers(0, (1 << 63) - 1))
def test_a_number_of_bytes_is_read_exactly(amount: int) -> None:
    assert parse_size(str(amount)) == amount


def test_a_bound_is_named() -> None:
    with pytest.raises(ValueError, match="at least 1024 bytes, was '1000'"):
        parse_size_from(1024)("1000")


def _quota(text: str) -> int:
    rules = parse_rules(namespaces="", prefixes="", quotas=f"team=memory:{text}")
    return rules.quotas["team"][Quota.MEMORY]


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(TypeAdapter(Size).validate_python, id="cluster file"),
        pytest.param(_quota, id="quota"),
        pytest.param(
            lambda text: (
                settings_from_fields(GatewaySettings, {"max_body_bytes": text}).max_body_bytes
            ),
            id="gateway",
        ),
        pytest.param(
            lambda text: (
                settings_from_fields(
                    SchedulerSettings, {"redis_url": "redis://a", "runner_memory": text}
                ).runner_memory
            ),
            id="scheduler",
        ),
        pytest.param(
            lambda text: (
                settings_from_fields(
                    RuntimeSettings, {"name": "pod-0", "memory_bytes": text}
                ).memory_bytes
            ),
            id="pod",
        ),
    ],
)
@pytest.mark.parametrize(
    ("text", "amount"), [("100MB", 10**8), ("100Mi", 100 << 20), ("100000000", 10**8)]
)
def test_whatever_takes_a_size_takes_each_form(
    read: Callable[[str], int], text: str, amount: int
) -> None:
    assert read(text) == amount


@pytest.mark.parametrize(
    ("text", "expected"),
    [("100MB/s", 1e8), ("1 GBps", 1e9), ("1Mi/s", float(1 << 20)), ("unlimited", inf), ("", inf)],
)
def test_reads_rates(text: str, expected: float) -> None:
    assert parse_rate(text) == expected


@pytest.mark.parametrize("text", ["fast", "0", "0MB/s", "-1/s"])
def test_refuses_what_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match="must be a rate such as 100MB/s"):
        parse_rate(text)


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
    [
        "",
        " ",
        "5",
        "-3s",
        "+3s",
        "3 s",
        "3s ",
        "s",
        "1.2.3s",
        "3d",
        "3S",
        "1e3s",
        "s3",
        "inf",
        "nan",
        "\u0663s",
        "9" * 200_000,
        "0" * 100 + "1s",
    ],
)
def test_refuses_other_texts(text: str) -> None:
    with pytest.raises(ValueError, match="a duration such as"):
        parse_duration_s(text)


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 999))
def test_parts_add_up(hours: int, minutes: int, milliseconds: int) -> None:
    expected_s = hours * 3600 + minutes * 60 + milliseconds / 1000
    assert parse_duration_s(f"{hours}h{minutes}m{milliseconds}ms") == pytest.approx(expected_s)
