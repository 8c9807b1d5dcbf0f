"""Limits of text generation, and each generation's share of the device's time; without torch.

Processor sharing: while n generations are active, each uses 1/n of the time. All shares add up to
the time in which any was active, so their mean is the reciprocal of the throughput.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from registry.domain.model import ModelPolicy
from runtime.device.queue import batch_cap

DEFAULT_CACHE_BYTES = 256 * 1024**2
GPU_CACHE_SHARE = 0.25
"""Of a GPU pod's memory for models, one model's cache in vLLM; no GPU has measured it."""
TIMEOUT_S = 600.0
"""Of a request: 4,096 tokens at 7 a second, which a large model on a few cores makes."""


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    cache_bytes: int
    """Key-value cache of all requests together."""
    max_concurrent: int
    """Requests in one step."""
    max_new_tokens: int
    timeout_s: float
    """Time limit of a request."""

    def batch_size(self, policy: ModelPolicy, planned: int | None = None) -> int:
        """Requests in one step of a model, which its annotations or a plan may limit further."""
        limit = self.max_concurrent
        cap = batch_cap(annotated=policy.max_batch_size, planned=planned, measured=limit)
        return min(limit, cap)


@dataclass(slots=True)
class DeviceShare:
    """One generation's share; `seconds` is set at its end."""

    seconds: float = 0.0


class ProcessorSharing:
    """The time of one device. Pure except for the given clock, in seconds."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._active = 0
        self._updated_s = now_s()
        self._share_s = 0.0
        """The share of a generation that is active all the time."""

    def enter(self) -> float:
        """Start a generation; returns the mark for `leave`."""
        self._update()
        self._active += 1
        return self._share_s

    def leave(self, mark_s: float) -> float:
        """End a generation; returns its share in seconds."""
        self._update()
        self._active -= 1
        return self._share_s - mark_s

    @contextmanager
    def measure(self) -> Iterator[DeviceShare]:
        """Measure the share of the block."""
        share, mark_s = DeviceShare(), self.enter()
        try:
            yield share
        finally:
            share.seconds = self.leave(mark_s)

    def _update(self) -> None:
        now_s = self._now_s()
        if self._active:
            self._share_s += (now_s - self._updated_s) / self._active
        self._updated_s = now_s
