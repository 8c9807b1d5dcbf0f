"""Default number of slots: the requests that a pod serves at once, if no setting says otherwise.

A batch contains only requests that are in a slot of the pod, so one slot means batches of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from registry.domain.profile import Profile

CPU_SLOTS: Final = 8
"""Two CPU pods embed 3 to 4 times as many sentences per second with 8 slots as with 1
(`docs/runtime.md`, Slots)."""
GPU_SLOTS: Final = 64
"""One batch of 64, the largest that live measurements try: fewer slots would keep them from it. No
GPU has measured it."""
MAX_SLOTS: Final = 128
"""Two batches of 64, the largest batch by live measurements."""


def placed_slots(slots: int, batch_size: int) -> int:
    """Slots of a pod with one model: as set (0: the default), and for two of its batches."""
    return min(max(slots or CPU_SLOTS, 2 * batch_size), MAX_SLOTS)


def default_slots(device: str = "cpu", profiles: Iterable[Profile] = ()) -> int:
    """Slots for two of the best batches: one runs on the device, the other is preprocessed.

    Never fewer than without profiles, since other models may not have one.

    Args:
        device: torch's name of the pod's device.
        profiles: those of the pod's accelerator.
    """
    unmeasured = CPU_SLOTS if device == "cpu" else GPU_SLOTS
    rows = max((profile.best_rows for profile in profiles), default=0)
    return min(max(unmeasured, 2 * rows), MAX_SLOTS)
