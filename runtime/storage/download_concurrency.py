"""Number of connections that read one object: doubled while added ones raise the throughput.

An object store limits one connection to a fraction of a machine's rate, and its first byte is slow,
so the readers are doubled until they reach the link's rate. Where the CPU is the limit, more
readers only add thread switches, so the number of readers stays.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_READERS = 16
INITIAL_READERS = 2
FAST_BYTES_PER_S = 250 * 1024**2
"""No readers are added at this throughput per reader."""
LINK_SHARE = 0.75
"""Share of the link's configured rate above which the link is the limit, not the store."""
MIN_GAIN = 0.5
"""Minimum gain in throughput, as a share of linear scaling, for which more readers are added."""


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
