"""Which of a model's waiting requests leave together when the device is free.

Pure, and free of torch, so that the simulator forms the same batches. The most urgent request
leads; others join it in the order of their deadlines while the batch stays within its bounds, among
them the share that is computed for padding. Times in seconds of one clock.

Source: Zhang et al. 2025, section 6.1 (one batch at a time on a device, made of what waits).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

MAX_SEQUENCES: Final = 16
"""Requests of a generating model that make tokens at once, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class QueuedRows:
    """One request that waits for the device."""

    sequence: int
    """Order of arrival, different for each."""
    due_s: float
    """When it is most urgent: its deadline, or a stand-in for those that have none."""
    enqueued_at_s: float
    deadline_s: float | None = None
    rows: int = 1
    """Items of the request; they are never parted."""
    tokens_per_row: int = 1
    """Width of its tensors in tokens; 1 where nothing is padded."""
    batch_key: Hashable = None
    """Requests of one kind can share a batch; None: it runs alone."""

    @property
    def urgency(self) -> tuple[float, int]:
        """The smaller, the sooner."""
        return (self.due_s, self.sequence)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of a model's batches."""

    max_rows: int = 8
    """Items in one inference; a request that has more runs alone."""
    max_wait_s: float = 0.0
    """How long the device may stay idle for a batch to fill."""
    max_padding: float = 0.5
    """Share of a batch's tokens that may be padding between requests."""
    max_tokens: int = 16_384
    """Items times the longest one's tokens, which is what memory on the way grows with."""
    inference_s: float = 0.0
    """Time of an inference: no batch waits to fill for so long that it misses a deadline."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that go together, the most urgent first, and from when on."""

    members: tuple[QueuedRows, ...]
    ready_s: float


def form_batch(waiting: Sequence[QueuedRows], now_s: float, limits: BatchLimits) -> Batch | None:
    """The next batch of one model; None where nobody waits. The caller takes its members out."""
    if not waiting:
        return None
    leader, *others = sorted(waiting, key=lambda each: each.urgency)
    if leader.batch_key is None:
        return Batch((leader,), now_s)
    members, rows, tokens, width = (
        [leader],
        leader.rows,
        leader.rows * leader.tokens_per_row,
        leader.tokens_per_row,
    )
    for each in others:
        if each.batch_key != leader.batch_key or rows + each.rows > limits.max_rows:
            continue
        new_rows, new_width = rows + each.rows, max(width, each.tokens_per_row)
        new_tokens = tokens + each.rows * each.tokens_per_row
        padded = new_rows * new_width
        if padded > limits.max_tokens or padded - new_tokens > limits.max_padding * padded:
            continue
        members.append(each)
        rows, tokens, width = new_rows, new_tokens, new_width
    is_ready = rows >= limits.max_rows or limits.max_wait_s == 0
    return Batch(tuple(members), now_s if is_ready else _ready_s(members, now_s, limits))


def _ready_s(members: Sequence[QueuedRows], now_s: float, limits: BatchLimits) -> float:
    """When a batch that is not full goes all the same."""
    filled_s = min(each.enqueued_at_s for each in members) + limits.max_wait_s
    deadlines_s = [each.deadline_s for each in members if each.deadline_s is not None]
    return max(now_s, min([filled_s, *(end_s - limits.inference_s for end_s in deadlines_s)]))
