"""Durations as Kubernetes users write them: Go style, such as `150ms`, `2s`, `1h30m`."""

from __future__ import annotations

import re

_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")


def parse_duration_s(text: str) -> float:
    """Seconds in a non-negative Go duration. Raises ValueError with what is allowed."""
    if text == "0":
        return 0.0
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("a duration such as '150ms', '2s' or '10m'")
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)
