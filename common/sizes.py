"""Sizes, rates and durations as flags, variables, annotations, files and messages write them.

A size is a number of bytes, or one with a unit of 1000 (k, M, G, T, P, E) or 1024 (Ki … Ei), with
or without a B, in any case: 1048576, 500MB, 4Gi, 1.5 GiB, 1e9.
A duration has the form of Go and Kubernetes: 150ms, 2s, 1h30m.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from math import inf
from typing import Final

_UNITS: Final = "kmgtpe"
_SIZE: Final = re.compile(
    rf"(?P<number>[0-9]{{1,20}}(\.[0-9]{{1,20}})?(e\+?[0-9]{{1,2}})?)\s*"
    rf"((?P<unit>[{_UNITS}])(?P<binary>i?))?(b|bytes?)?",
    re.IGNORECASE | re.ASCII,
)
_PER_SECOND: Final = re.compile(r"\s*(/\s*s|ps)$", re.IGNORECASE)
_MAX_BYTES: Final = (1 << 63) - 1


def shown_bytes(amount: int) -> str:
    """For messages: the bytes, from a hundredth of a megabyte on with megabytes beside them."""
    return f"{amount} bytes" + (f" ({amount / 1e6:.2f} MB)" if amount >= 10_000 else "")


def parse_size(text: str) -> int:
    """Bytes, 0 or more. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"must be a size such as 4Gi, 500MB or 1048576 bytes, was {text!r}")
    exponent = _UNITS.index(match["unit"].lower()) + 1 if match["unit"] else 0
    amount = int(Decimal(match["number"]) * (1024 if match["binary"] else 1000) ** exponent)
    if amount > _MAX_BYTES:
        raise ValueError(f"must be a size of less than 8Ei, was {text!r}")
    return amount


def parse_size_from(low: int) -> Callable[[str], int]:
    """A parser of sizes of at least `low` bytes."""

    def parse(text: str) -> int:
        amount = parse_size(text)
        if amount < low:
            raise ValueError(f"must be a size of at least {low} bytes, was {text!r}")
        return amount

    return parse


def parse_rate(text: str) -> float:
    """Bytes per second of a size with `/s`; infinity for `unlimited`. Raises ValueError."""
    if text.strip().lower() in {"unlimited", "none", ""}:
        return inf
    try:
        amount = parse_size(_PER_SECOND.sub("", text.strip()))
    except ValueError:
        amount = 0
    if amount <= 0:
        raise ValueError(f"must be a rate such as 100MB/s, or unlimited, was {text!r}")
    return float(amount)


MAX_CHARACTERS: Final = 64
"""The search for parts in many digits without a unit takes quadratic time."""
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNIT_S |= {"\u00b5s": 1e-6, "\u03bcs": 1e-6}  # the micro sign and the Greek letter, as in Go
_PART = re.compile("([0-9]+(?:[.][0-9]*)?|[.][0-9]+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")


def parse_duration_s(text: str) -> float:
    """Seconds in a non-negative Go duration. Raises ValueError with what is allowed."""
    if text == "0":
        return 0.0
    parts = _PART.findall(text) if len(text) <= MAX_CHARACTERS else []
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("a duration such as '150ms', '2s' or '10m'")
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)
