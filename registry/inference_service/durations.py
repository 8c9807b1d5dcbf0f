"""Durations in the form of Go and Kubernetes, such as `150ms`, `2s`, `1h30m`."""

from __future__ import annotations

import re
from typing import Final

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
