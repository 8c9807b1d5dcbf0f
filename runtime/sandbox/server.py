"""The process that forks the workers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from runtime.child_processes import serve_forks
from runtime.sandbox.worker import run_worker

if TYPE_CHECKING:
    import socket

MEMORY_BYTES: Final = 512 * 1024**2
"""What a worker may use beyond the libraries."""


def fork_server(memory_bytes: int = MEMORY_BYTES) -> socket.socket:
    """Its control socket. Call it while the process has a single thread."""
    return serve_forks(partial(run_worker, memory_bytes=memory_bytes))
