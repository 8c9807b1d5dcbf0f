"""Syntax of sizes, rates, durations and times by rows in a cluster file.

Each parser raises ValueError, which says what is allowed.
"""

from __future__ import annotations

import re
from math import inf
from typing import Any

from registry.inference_service.durations import parse_duration_s

_FACTORS = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", re.IGNORECASE)


def size(value: Any) -> int:
    """Bytes, from text such as 250MB or 4Gi."""
    found = _SIZE.fullmatch(str(value).strip())
    factor = _FACTORS.get(found[2].lower()) if found else None
    if not found or not factor:
        raise ValueError("must be a size such as 250MB or 4Gi")
    return int(float(found[1]) * factor)


def rate(value: Any) -> float:
    """Bytes per second, from text such as 100MB/s; infinity for `unlimited`."""
    text = str(value).strip()
    if text == "unlimited":
        return inf
    try:
        amount = float(size(text.removesuffix("/s")))
    except ValueError:
        amount = 0.0
    if amount <= 0:
        raise ValueError("must be a rate such as 100MB/s, or 'unlimited'")
    return amount


def duration(value: Any) -> float:
    """Seconds, from text such as 20ms."""
    try:
        return parse_duration_s(str(value))
    except ValueError as allowed:
        raise ValueError(f"must be {allowed}") from None


def start(value: Any) -> float:
    """Seconds; infinity for `never`."""
    return inf if value == "never" else duration(value)


def per_token(value: Any) -> Any:
    """Time by rows; a single time holds for every number of rows, 0 means no time."""
    if isinstance(value, dict):
        return value
    return {1: value} if duration(value) else {}
