"""Sizes and rates as flags write them (`4Gi`, `100MB/s`), and sizes as tables print them."""

from __future__ import annotations

import re

from load.simulator.cluster.values import size
from pilotlight.errors import InvalidInput


def parse_bytes(text: str, *, field: str) -> int:
    """Bytes of a Kubernetes quantity (`4Gi`), a size (`100MB`) or a plain number."""
    try:
        amount = size(text)
    except ValueError:
        amount = 0
    if amount <= 0:
        raise InvalidInput([f"{field} must be a positive size such as 4Gi or 500MB, was {text!r}"])
    return amount


def parse_rate(text: str, *, field: str) -> float | None:
    """Bytes per second of `100MB/s`; None for `unlimited`."""
    if text.strip().lower() in {"unlimited", "none", ""}:
        return None
    try:
        return float(parse_bytes(re.sub(r"(/s|ps)$", "", text.strip()), field=field))
    except InvalidInput:
        problem = f"{field} must be a rate such as 100MB/s, or unlimited, was {text!r}"
        raise InvalidInput([problem]) from None


def format_bytes(amount: float) -> str:
    """A size in decimal units: `242 MB`."""
    for factor, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if amount >= factor:
            scaled = amount / factor
            return f"{scaled:.0f} {unit}" if scaled >= 10 else f"{scaled:.1f} {unit}"
    return f"{amount:.0f} B"


def format_age(seconds: float) -> str:
    """As kubectl prints ages: `12s`, `3m20s`, `2h5m`, `4d`; 0s for a time in the future."""
    whole = max(int(seconds), 0)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if minutes < 2:
        return f"{whole}s"
    if minutes < 10:
        return f"{minutes}m{whole % 60}s"
    if hours < 2:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m"
    return f"{hours}h" if days < 2 else f"{days}d"
