"""A model's place at the device: how its requests run, alone and together, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from registry.domain.model import ModelPolicy
from runtime.device.batch import BatchLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from runtime.device.batch_times import BatchTimes


@dataclass(frozen=True, slots=True)
class Payload:
    """What a request brings to the device, and with what it can share a batch."""

    content: Any
    rows: int = 1
    tokens_per_row: int = 1
    batch_key: Hashable = None
    """Payloads of one kind can be inferred together; None: alone."""


@dataclass(eq=False, slots=True)
class DeviceModel:
    """One model on the device. Mutable: its policy may change, and it may break."""

    key: str = ""
    """`namespace/name@generation`; empty: work that belongs to no model."""
    name: str = ""
    """Its name in metrics."""
    infer: Callable[[Sequence[Any]], list[Any]] = list
    """The results of one inference over the contents of several payloads; runs on the device."""
    policy: ModelPolicy = field(default_factory=ModelPolicy)
    max_rows: int | None = None
    """Most items that the network takes at once; None: as many as fit."""
    broken_reason: str | None = None
    """Why nothing of it runs any more."""

    def limits(self, times: BatchTimes) -> BatchLimits:
        """The bounds of its next batch."""
        wait_s = self.policy.max_batch_wait_s
        wanted = self.policy.max_batch_size or times.max_rows(self.key)
        return BatchLimits(
            max_rows=wanted if self.max_rows is None else min(wanted, self.max_rows),
            max_wait_s=wait_s,
            inference_s=times.longest_batch_s(self.key) if wait_s else 0.0,
        )
