"""Long timeouts for registry clients in tests: on a busy machine Redis replies late."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from registry.redis import redis_connection, server_address, transactions, watch

TIMEOUT_S = 60.0
_TIMEOUTS = (
    (transactions, "REPLY_TIMEOUT_S"),
    (transactions, "SNAPSHOT_TIMEOUT_S"),
    (watch, "REPLY_TIMEOUT_S"),
    (redis_connection, "CONNECT_TIMEOUT_S"),
    (server_address, "DISCOVERY_TIMEOUT_S"),
)
_DEFAULTS_S = [getattr(module, name) for module, name in _TIMEOUTS]
_lock = threading.Lock()
_users = 0


@contextmanager
def long_timeouts() -> Iterator[None]:
    """Give all registry clients of this process long timeouts; may be nested and concurrent."""
    _change_users(1, [TIMEOUT_S] * len(_TIMEOUTS))
    try:
        yield
    finally:
        _change_users(-1, _DEFAULTS_S)


def _change_users(change: int, timeouts_s: list[float]) -> None:
    """Set the timeouts for the first user, and restore them after the last one."""
    global _users
    with _lock:
        _users += change
        if _users == (change > 0):
            for (module, name), timeout_s in zip(_TIMEOUTS, timeouts_s, strict=True):
                setattr(module, name, timeout_s)
