"""Which request, or else the model, is to blame for inferences that hang.

Pure. Each hang suspects the requests of its batch. A request that all hangs have in common is the
cause and is refused; without one, different requests hang, and the model is to blame.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

PAUSE_S: Final = 300.0
"""How long a suspicion lasts after the last hang."""


@dataclass(slots=True)
class Suspects:
    """Of one model. Times are of one clock."""

    digests: frozenset[bytes] = frozenset()
    until_s: float = 0.0

    def record(self, hung: Iterable[bytes], now_s: float) -> bool:
        """Record a hung batch by its requests' digests; whether the model is to blame.

        A batch without requests, such as a warm-up, leaves only the model.
        """
        seen = frozenset(hung)
        common = seen & self.digests if now_s < self.until_s else seen
        self.digests, self.until_s = common, now_s + PAUSE_S
        return not common

    def refused_s(self, inputs: object, now_s: float) -> float:
        """For how long a request with these inputs is refused; 0 if it is not."""
        if len(self.digests) != 1 or now_s >= self.until_s:
            return 0.0
        return self.until_s - now_s if digest_of(inputs) in self.digests else 0.0


def digest_of(inputs: object) -> bytes:
    """Of a request's tensors."""
    digest = hashlib.sha256()
    if not isinstance(inputs, tuple):
        digest.update(repr(inputs).encode())
        return digest.digest()
    for tensor in inputs:
        data = tensor.data
        digest.update(f"{tensor.name} {tensor.datatype} {data.shape} ".encode())
        digest.update(repr(data.tolist()).encode() if data.dtype.hasobject else data.tobytes())
    return digest.digest()
