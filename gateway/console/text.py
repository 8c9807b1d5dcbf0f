"""How the console writes times and sizes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def duration(seconds: float | None) -> str:
    """Such as `21 ms`, `1.4 s`, `3 min`; `-` for None."""
    if seconds is None:
        return "-"
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"


def size(count: float | None) -> str:
    """Such as `242 MB`; `-` for None."""
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def clock(at_s: float) -> str:
    """Time of day, UTC."""
    return time.strftime("%H:%M:%S", time.gmtime(at_s))


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "duration": duration, "size": size, "clock": clock,
}  # fmt: skip
