"""How many connections read one object: few where each is fast, more while more bring more.

A store gives a connection a fraction of what it gives a machine, and its first byte comes late, so
readers are doubled until they have the rate; on a machine whose processors are the limit, a second
pair of readers brings nothing but switches between threads, and it stays at that.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_READERS = 16
FIRST_READERS = 2
FAST_BYTES_PER_S = 250 * 1024**2
"""A reader as fast as this needs no company."""
LINK_SHARE = 0.75
"""Of a link's rate: who has that much of it waits for the link, not for the store."""
LEAST_GAIN = 0.5
"""Of what readers that join would bring if all were alike; with less, nobody else joins."""


@dataclass(frozen=True, slots=True)
class ReadRate:
    """What so many readers brought together."""

    readers: int
    bytes_per_s: float


def next_reader_count(
    now: ReadRate, before: ReadRate | None, link_bytes_per_s: float | None
) -> int:
    """How many join. `before` is the pace when the last joined, if any did."""
    enough: float = FAST_BYTES_PER_S * now.readers
    if link_bytes_per_s is not None:
        enough = min(enough, LINK_SHARE * link_bytes_per_s)
    if now.bytes_per_s >= enough:
        return 0
    if before is not None:
        growth = now.readers / before.readers - 1
        if now.bytes_per_s < before.bytes_per_s * (1 + LEAST_GAIN * growth):
            return 0
    return max(0, min(now.readers, MOST_READERS - now.readers))
