"""Which requests a model refuses: those whose inferences hang; or else the model is to blame.

Each hang suspects the requests of its batch. A request that hangs have in common, or that was alone
in its batch, is the cause and is refused. The model is to blame once different requests hang and no
other has ended since the first, or once there are `MAX_CAUSES` of them. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from common.inference_protocol.tensors import Tensor

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

    hangs: list[_Hang] = field(default_factory=list)
    _has_served: bool = False
    """Whether an inference has ended since the first of the hangs."""

    def record(self, hung: Iterable[bytes], now_s: float) -> bool:
        """Record a hung batch by its requests' digests; whether the model is to blame.

        A batch without requests, such as a warm-up, leaves only the model.
        """
        seen = frozenset(hung)
        self._forget(now_s)
        for hang in self.hangs:
            if common := hang.digests & seen:
                hang.digests, hang.until_s = common, now_s + PAUSE_S
                return False
        self.hangs.append(_Hang(seen, now_s + PAUSE_S))
        if not seen or len(self.hangs) >= MAX_CAUSES:
            return True
        return len(self.hangs) > 1 and not self._has_served

    def record_served(self) -> None:
        """Record that an inference of the model has ended."""
        if self.hangs:
            self._has_served = True

    def refused_s(self, inputs: object, now_s: float) -> float:
        """For how long a request with these inputs is refused; 0 if it is not."""
        causes = {
            digest: hang.until_s
            for hang in self.hangs
            if len(hang.digests) == 1 and now_s < hang.until_s
            for digest in hang.digests
        }
        return causes.get(digest_of(inputs), now_s) - now_s if causes else 0.0

    def _forget(self, now_s: float) -> None:
        self.hangs = [each for each in self.hangs if now_s < each.until_s]
        if not self.hangs:
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
