"""A model on the device: its inputs, inference function and batch limits, and whether it is broken.

Which request, or else the model, is to blame for inferences that hang: each hang suspects the
requests of its batch. A request that hangs have in common, or that was alone in its batch, is the
cause and is refused. The model is to blame once different requests hang and no other has ended
since the first, or once there are `MAX_CAUSES` of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from registry.domain.model import ModelPolicy
from runtime.device.batch import BatchLimits, batch_cap

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from common.inference_protocol.tensors import Tensor
    from runtime.device.batch_times import BatchTimes

PAUSE_S: Final = 300.0
"""How long a suspicion lasts after its last hang."""
MAX_CAUSES: Final = 4
"""Different requests that hang within `PAUSE_S`, each for the model's time limit, before the model
is refused although it serves others."""


class OutputPlace(Enum):
    """Where an inference leaves the outputs of a request."""

    HOST = auto()
    DEVICE = auto()
    """In the memory of the batch, for more work of the device's thread."""
    KEPT = auto()
    """Large ones on the device in memory of their own, as far as there is room."""


@dataclass(frozen=True, slots=True)
class ModelInputs:
    tensors: tuple[Tensor, ...]
    """Checked, in the network's order."""
    outputs: OutputPlace = OutputPlace.HOST


@dataclass(slots=True)
class _Hang:
    """The requests one of which has caused one or more hangs."""

    digests: frozenset[bytes]
    until_s: float


@dataclass(slots=True)
class Suspects:
    """Of one model. Times are of one clock."""

    _hangs: list[_Hang] = field(default_factory=list)
    _has_served: bool = False
    """Whether an inference has ended since the first of the hangs."""

    def record(self, hung: Iterable[bytes], now_s: float) -> bool:
        """Record a hung batch by its requests' digests; whether the model is to blame.

        A batch without requests, such as a warm-up, leaves only the model.
        """
        seen = frozenset(hung)
        self._forget(now_s)
        for hang in self._hangs:
            if common := hang.digests & seen:
                hang.digests, hang.until_s = common, now_s + PAUSE_S
                return False
        self._hangs.append(_Hang(seen, now_s + PAUSE_S))
        if not seen or len(self._hangs) >= MAX_CAUSES:
            return True
        return len(self._hangs) > 1 and not self._has_served

    def record_served(self) -> None:
        """Record that an inference of the model has ended."""
        if self._hangs:
            self._has_served = True

    def refused_s(self, inputs: object, now_s: float) -> float:
        """For how long a request with these inputs is refused; 0 if it is not."""
        causes = {
            digest: hang.until_s
            for hang in self._hangs
            if len(hang.digests) == 1 and now_s < hang.until_s
            for digest in hang.digests
        }
        return causes.get(digest_of(inputs), now_s) - now_s if causes else 0.0

    def _forget(self, now_s: float) -> None:
        self._hangs = [each for each in self._hangs if now_s < each.until_s]
        if not self._hangs:
            self._has_served = False


def digest_of(inputs: object) -> bytes:
    """Of a request's tensors."""
    digest = hashlib.sha256()
    if not isinstance(inputs, ModelInputs):
        digest.update(repr(inputs).encode())
        return digest.digest()
    for tensor in inputs.tensors:
        digest.update(f"{tensor.name} {tensor.datatype} {tensor.shape} ".encode())
        digest.update(tensor.content())
    return digest.digest()


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
