"""How many connections read one object: doubled while the added ones raise the throughput.

An object store gives one connection a fraction of what it gives a machine, and its first byte comes
late, so readers are doubled until they reach the rate. Where the CPU is the limit, a second pair of
readers only adds thread switches, and the number stays.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_READERS = 16
INITIAL_READERS = 2
FAST_BYTES_PER_S = 250 * 1024**2
"""A reader as fast as this needs no second one."""
LINK_SHARE = 0.75
"""Share of the configured rate above which the rate is the limit, not the store."""
MIN_GAIN = 0.5
"""Least gain in throughput from added readers, as a share of a linear gain, to add more."""


@dataclass(frozen=True, slots=True)
class ReadRate:
    """Throughput of a number of readers together."""

    readers: int
    bytes_per_s: float


def additional_readers(
    now: ReadRate, before: ReadRate | None, link_bytes_per_s: float | None
) -> int:
    """Number of readers to add. `before` is the rate before the last readers were added, if any."""
    enough: float = FAST_BYTES_PER_S * now.readers
    if link_bytes_per_s is not None:
        enough = min(enough, LINK_SHARE * link_bytes_per_s)
    if now.bytes_per_s >= enough:
        return 0
    if before is not None:
        growth = now.readers / before.readers - 1
        if now.bytes_per_s < before.bytes_per_s * (1 + MIN_GAIN * growth):
            return 0
    return max(0, min(now.readers, MAX_READERS - now.readers))
