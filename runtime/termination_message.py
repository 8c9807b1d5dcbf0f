"""Why a pod ended, for `kubectl describe pod`: the termination message of its container."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

TERMINATION_LOG: Final = Path("/dev/termination-log")
"""Kubernetes mounts this file into each container, and shows at most 4096 bytes of it."""
MAX_BYTES: Final = 4096


def write_termination_message(reason: str, path: Path = TERMINATION_LOG) -> None:
    """State why the pod ends, where Kubernetes provides the file."""
    with suppress(OSError):
        if path.is_file():
            path.write_bytes(reason.encode()[:MAX_BYTES])
