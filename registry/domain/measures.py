"""What pods measure by size: inferences by that of the request, transfers by that of the output.

One model serves small and large requests. Estimates that take all of them for alike refuse small
ones because large ones were slow. A size is a number of bytes at gateways, of rows in a batch at
pods. A transfer is how a step's output comes to the pod of the next step. Other pods get outputs
from host memory, so its times are those of hosts and networks, and of the copy from a device for an
output that was there. All are stored by the kind of the receiving pod's accelerator. Pure; seconds
and bytes.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

MAX_AGE_S: Final = 60.0
"""Measurements older than this refuse no request: what was slow then may be fast now."""
MAX_CLASSES: Final = 16
"""Larger bodies than those of the last class count as of it."""
_SMALLEST_BITS: Final = 10
"""Bodies of up to 1 KiB are one class."""
_BITS_PER_CLASS: Final = 2
"""Each class reaches to four times the size of the one before it."""

KEPT_OVER_BYTES: Final = 64 * 1024
"""Larger outputs stay at the pod. Schedulers journal results up to this size, so that they need
their data in any case (`workflows/service/journal.py`)."""
SHARED_OVER_BYTES: Final = 256 * 1024
"""Smaller tensors cost about as much to map as to send."""
TRANSFERS: Final = "transfers"
"""In place of a model's key, which it cannot be: a transfer depends on no model."""
OUTPUT_BYTES: Final = "output-bytes"
"""Measure of a model: the size of a step's outputs, in bytes."""


def size_class(body_bytes: int) -> int:
    """The class of a body: 0 up to 1 KiB, 1 up to 4 KiB, and so on; 8 up to 64 MiB."""
    extra_bits = max(0, body_bytes - 1).bit_length() - _SMALLEST_BITS
    return min(MAX_CLASSES - 1, -(-extra_bits // _BITS_PER_CLASS)) if extra_bits > 0 else 0


def class_bytes(of_class: int) -> int:
    """The largest body of a class."""
    return 1 << (_SMALLEST_BITS + _BITS_PER_CLASS * of_class)


def infer_measure(of_class: int) -> str:
    """The measure of inference times of requests of one class."""
    return f"infer:{of_class}"


def seconds_at_size(points: Sequence[tuple[float, float]], size: float) -> float:
    """Time at a size, from (size, seconds) of the sizes that were measured, ascending.

    Linear between two sizes; in proportion below the smallest, the largest one's time above it: the
    least that is to be expected. Without points: 0.
    """
    before_size = before_s = 0.0
    for at_size, at_s in points:
        if size <= at_size:
            part = (size - before_size) / (at_size - before_size)
            return before_s + part * (at_s - before_s)
        before_size, before_s = at_size, at_s
    return before_s


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
    """The measure of the times of transfers of one size class (`registry.domain.measures`)."""
    return f"{tier}:{of_class}"
