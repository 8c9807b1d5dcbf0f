"""A model on the device: its inference function, its batch limits, and whether it is broken."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from registry.domain.model import ModelPolicy
from runtime.device.batch import BatchLimits, batch_cap
from runtime.device.suspects import Suspects

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from runtime.device.batch_times import BatchTimes


@dataclass(frozen=True, slots=True)
class Payload:
    """The input of one inference, and its size for batching."""

    content: Any
    rows: int = 1
    tokens_per_row: int = 1
    batch_key: Hashable = None
    """Payloads with equal keys can be inferred in one batch; None: only alone."""


@dataclass(eq=False, slots=True)
class DeviceModel:
    """One model. Mutable: its policy may change, and it may break."""

    key: str = ""
    """`namespace/name@generation`; empty for work that belongs to no model."""
    name: str = ""
    """The model's label in metrics."""
    infer: Callable[[Sequence[Any]], list[Any]] = list
    """One inference over the contents of several payloads, with a result for each."""
    policy: ModelPolicy = field(default_factory=ModelPolicy)
    max_rows: int | None = None
    """Limit of the network's batch dimension; None: no limit."""
    broken_reason: str | None = None
    """Set once inferences of different requests hung; no further inference of it runs."""
    suspects: Suspects = field(default_factory=Suspects)

    @property
    def tenant(self) -> str:
        return self.key.partition("/")[0]

    def limits(self, times: BatchTimes) -> BatchLimits:
        wait_s = self.policy.max_batch_wait_s
        wanted = batch_cap(
            annotated=self.policy.max_batch_size,
            planned=times.planned_rows.get(self.key),
            measured=times.max_rows(self.key),
        )
        return BatchLimits(
            max_rows=wanted if self.max_rows is None else min(wanted, self.max_rows),
            max_wait_s=wait_s,
            inference_s=times.longest_batch_s(self.key) if wait_s else 0.0,
        )
