"""Which version of a model answers a request: the model itself, or one of its canaries.

By the request's id alone: the same id goes to the same version at every gateway, and as more is
given to a canary, requests that it had already stay with it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from registry.domain.canaries import TOTAL_PERCENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from registry.domain.canaries import Canary
    from registry.domain.model import ModelName


def choose_version(stable: ModelName, canaries: Sequence[Canary], request_id: str) -> ModelName:
    """The model that is to answer; each canary gets its percentage of all ids."""
    point = TOTAL_PERCENT * _place_of(f"{stable}\0{request_id}")
    for canary in canaries:
        if point < canary.percent:
            return canary.model
        point -= canary.percent
    return stable


def _place_of(text: str) -> float:
    """A place in [0, 1), evenly spread over texts."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / (1 << 64)
