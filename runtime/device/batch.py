"""Selects which of a model's queued requests form the next batch.

Pure, and free of torch, so that the simulator forms the same batches. The most urgent request
leads; others join it in the order of their deadlines while the batch stays within its limits, among
them the share of padding. Times in seconds of one clock.

Source: Zhang et al. 2025, section 6.1 (one batch at a time on a device, formed from its queue).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

MAX_SEQUENCES: Final = 16
"""Default number of requests of a model that generate tokens at once, on a CPU."""
GPU_SEQUENCES: Final = 64
"""The same on a GPU, as many as its slots; no GPU has measured it."""


def batch_cap(*, annotated: int | None, planned: int | None, measured: int) -> int:
    """Largest batch: by the model's annotation, else the autoscaler's plan, else measurements."""
    return annotated or planned or measured


@dataclass(frozen=True, slots=True)
class QueuedRows:
    """One request in the device's queue."""

    sequence: int
    """Order of arrival, unique."""
    due_s: float
    """Its deadline, or an assumed one."""
    enqueued_at_s: float
    deadline_s: float | None = None
    rows: int = 1
    """Items of the request, always inferred in one batch."""
    tokens_per_row: int = 1
    """Width of its tensors; 1 if nothing is padded."""
    batch_key: Hashable = None
    """Requests of one key can share a batch; None: it runs alone."""

    @property
    def urgency(self) -> tuple[float, int]:
        """Requests are ordered by it, the smallest first."""
        return (self.due_s, self.sequence)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    max_rows: int = 8
    """Items in one inference; a request with more runs alone."""
    max_wait_s: float = 0.0
    """How long an idle device may wait for a batch to fill."""
    max_padding: float = 0.5
    """Share of a batch's tokens that may be padding between requests."""
    max_tokens: int = 16_384
    """Items times the longest one's tokens; memory for activations is proportional to it."""
    inference_s: float = 0.0
    """Expected time of an inference: a batch stops waiting this long before a deadline."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests inferred together, the most urgent first, and the time at which they may start."""

    members: tuple[QueuedRows, ...]
    ready_s: float


def form_batch(queued: Sequence[QueuedRows], now_s: float, limits: BatchLimits) -> Batch | None:
    """The next batch of one model, None for an empty queue. The caller removes its members."""
    if not queued:
        return None
    leader, *others = sorted(queued, key=lambda each: each.urgency)
    if leader.batch_key is None:
        return Batch((leader,), now_s)
    members, rows, width = [leader], leader.rows, leader.tokens_per_row
    tokens = rows * width
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
        if rows >= limits.max_rows:
            break
    is_ready = rows >= limits.max_rows or limits.max_wait_s == 0
    return Batch(tuple(members), now_s if is_ready else _ready_s(members, now_s, limits))


def _ready_s(members: Sequence[QueuedRows], now_s: float, limits: BatchLimits) -> float:
    """When a batch that is not full may start."""
    filled_s = min(each.enqueued_at_s for each in members) + limits.max_wait_s
    deadlines_s = [each.deadline_s for each in members if each.deadline_s is not None]
    return max(now_s, min([filled_s, *(end_s - limits.inference_s for end_s in deadlines_s)]))
