"""A pod's process and what is around it: its accelerator and share, and why the process ended.

It is bound to its share before anything starts CUDA or a thread.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

MPS_PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""MPS reads it when CUDA starts: another share needs another process."""


def bind_to_share(*, gpu: str = "", cores: str = "", share_pct: float) -> None:
    """Set what CUDA reads at its start, and the cores this process may use; raises OSError.

    `cores`: numbers separated by commas; with them they are the share. 0: no limit by MPS.
    """
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if share_pct and not cores:
        os.environ[MPS_PERCENTAGE] = f"{share_pct:g}"
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))


TERMINATION_LOG: Final = Path("/dev/termination-log")
"""Kubernetes mounts this file into each container, and shows at most 4096 bytes of it."""
MAX_BYTES: Final = 4096


def write_termination_message(reason: str, path: Path = TERMINATION_LOG) -> None:
    """State why the pod ends, for `kubectl describe pod`, where Kubernetes provides the file."""
    with suppress(OSError):
        if path.is_file():
            path.write_bytes(reason.encode()[:MAX_BYTES])
