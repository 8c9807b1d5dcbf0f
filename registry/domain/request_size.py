"""How long an inference takes by the size of its request: classes of sizes, and times between them.

One model serves small and large requests. Estimates that take all of them for alike refuse small
ones because large ones were slow. A size is a number of bytes at gateways, of rows in a batch at
pods. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_AGE_S: Final = 60.0
"""Measurements older than this refuse no request: what was slow then may be fast now."""
MAX_CLASSES: Final = 16
"""Larger bodies than those of the last class count as of it."""
_SMALLEST_BITS: Final = 10
"""Bodies of up to 1 KiB are one class."""
_BITS_PER_CLASS: Final = 2
"""Each class reaches to four times the size of the one before it."""


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
