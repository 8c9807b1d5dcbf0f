"""How the console writes times and sizes, and how far loads are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gateway.telemetry import explanations
from registry.domain.pod_state import PodState
from registry.domain.residency_index import Residency

_STEPS: Final = 20
"""Shares are rounded to so many steps: every change is sent to every browser."""


def duration(seconds: float | None) -> str:
    """Such as `21 ms`, `1.4 s`, `3 min`; `-` for None."""
    if seconds is None:
        return "-"
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    return explanations.duration(seconds)


def size(count: float | None) -> str:
    """Such as `242 MB`; `-` for None."""
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def number(value: float | None) -> str:
    """Such as `0.382` or `1,240`; `-` for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def clock(at_s: float) -> str:
    """Time of day, UTC."""
    return time.strftime("%H:%M:%S", time.gmtime(at_s))


def bar_parts(stages_ms: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    """Parts of a stacked bar, in % of its length; those of no length are left out."""
    total_ms = sum(ms for _, ms in stages_ms)
    parts, begin = [], 0.0
    for name, ms in stages_ms:
        if ms > 0:
            width = 100 * ms / total_ms
            parts.append({"name": name, "seconds": ms / 1000, "begin": begin, "width": width})
            begin += width
    return parts


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "duration": duration, "size": size, "number": number, "clock": clock, "bar_parts": bar_parts,
}  # fmt: skip


def load_progress(
    key: str, pod: PodState, residency: Residency, now_s: float
) -> dict[str, Any] | None:
    """`share` (0 to 1) and `text` of a load in progress; None without one.

    By the time that loads from its tier took before; `share` is None where none was measured.
    """
    if residency.loading_from is None:
        return None
    whole = pod.estimates[key].load_from(residency.loading_from, pod.info.link_bytes_per_s)
    elapsed_s = max(now_s - residency.since_s, 0.0)
    if not whole.is_measured:
        return {"share": None, "text": f"for {int(elapsed_s)} s"}
    share = int(_STEPS * elapsed_s / max(whole.seconds, 1e-6)) / _STEPS
    if share >= 1:
        late = f"late: {int(elapsed_s)} s of about {duration(whole.seconds)}"
        return {"share": 1.0, "text": late}
    return {"share": share, "text": f"{share:.0%} of about {duration(whole.seconds)}"}
