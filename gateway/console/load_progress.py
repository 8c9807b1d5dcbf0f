"""How far loads are, by the time that loads from their tiers took before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.console.text import duration

if TYPE_CHECKING:
    from registry.domain.pod_state import PodState
    from registry.domain.residency_index import Residency

_STEPS: Final = 20
"""Shares are rounded to so many steps: every change is sent to every browser."""


def load_progress(
    key: str, pod: PodState, residency: Residency, now_s: float
) -> dict[str, Any] | None:
    """`share` (0 to 1) and `text` of a load in progress; None without one.

    Without a measured time of such a load, `share` is None.
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
