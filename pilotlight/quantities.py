"""Sizes and rates as flags write them (`4Gi`, `100MB/s`), and sizes as tables print them."""

from math import inf

from common import sizes
from pilotlight.errors import InvalidInput


def parse_bytes(text: str, *, field: str) -> int:
    """Bytes, more than 0."""
    try:
        return sizes.parse_size_from(1)(text)
    except ValueError as error:
        raise InvalidInput([f"{field} {error}"]) from None


def parse_rate(text: str, *, field: str) -> float | None:
    """Bytes per second of `100MB/s`; None for `unlimited`."""
    try:
        rate = sizes.parse_rate(text)
    except ValueError as error:
        raise InvalidInput([f"{field} {error}"]) from None
    return None if rate == inf else rate


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
