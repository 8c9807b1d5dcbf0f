"""For those who stand in for others in tests: a Redis that does not answer is busy, not away."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from registry.redis import redis_connection, server_address, transactions, watch

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 60.0
_LIMITS = (
    (transactions, "REPLY_TIMEOUT_S"),
    (transactions, "SNAPSHOT_TIMEOUT_S"),
    (watch, "REPLY_TIMEOUT_S"),
    (redis_connection, "CONNECT_TIMEOUT_S"),
    (server_address, "DISCOVERY_TIMEOUT_S"),
)
_USUAL_S = [getattr(module, name) for module, name in _LIMITS]
_lock = threading.Lock()
_inside = 0


@contextmanager
def patient() -> Iterator[None]:
    """While anybody is within it, clients of the registry that are of this process wait."""
    _enter(1, [TIMEOUT_S] * len(_LIMITS))
    try:
        yield
    finally:
        _enter(-1, _USUAL_S)


def _enter(more: int, limits_s: list[float]) -> None:
    global _inside
    with _lock:
        _inside += more
        if _inside == (more > 0):
            for (module, name), limit_s in zip(_LIMITS, limits_s, strict=True):
                setattr(module, name, limit_s)
