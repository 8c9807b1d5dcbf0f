"""How a step's output comes to the pod of the next step, and what that takes, as pods measure it.

Other pods get outputs from host memory, so the times are those of hosts and networks, and of the
copy from a device for an output that was there. They are stored by the kind of the receiving pod's
accelerator, as all measurements are. Pure; seconds and bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

KEPT_OVER_BYTES: Final = 64 * 1024
"""Larger outputs stay at the pod. Schedulers journal results up to this size, so that they need
their data in any case (`workflows/service/journal.py`)."""
SHARED_OVER_BYTES: Final = 256 * 1024
"""Smaller tensors cost about as much to map as to send."""
TRANSFERS: Final = "transfers"
"""In place of a model's key, which it cannot be: a transfer depends on no model."""
OUTPUT_BYTES: Final = "output-bytes"
"""Measure of a model: the size of a step's outputs, in bytes."""


class TransferTier(StrEnum):
    """Also a metric label."""

    SAME_POD = "same-pod"
    """The tensor is used where it is."""
    SHARED_MEMORY = "shared-memory"
    """Another pod's memory on the same node is mapped."""
    RAW_BYTES = "raw-bytes"
    """Another pod sends the bytes."""


def transfer_tier(size_bytes: float, *, shares_memory: bool) -> TransferTier | None:
    """How an output comes to another pod; None: the scheduler sends it, wherever the step runs."""
    if size_bytes <= KEPT_OVER_BYTES:
        return None
    if shares_memory and size_bytes > SHARED_OVER_BYTES:
        return TransferTier.SHARED_MEMORY
    return TransferTier.RAW_BYTES


def transfer_measure(tier: TransferTier, of_class: int) -> str:
    """The measure of the times of transfers of one size class (`registry.domain.request_size`)."""
    return f"{tier}:{of_class}"
