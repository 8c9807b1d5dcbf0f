"""Binds a pod's process to its accelerator and share, before anything starts CUDA or a thread."""

from __future__ import annotations

import os
from typing import Final

MPS_PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""MPS reads it when CUDA starts: another share needs another process."""


def bind_to_share(*, gpu: str, cores: str, share_pct: float) -> None:
    """Set what CUDA reads at its start, and the cores this process may use; raises OSError.

    With `cores` they are the share; 0: no limit by MPS.
    """
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if share_pct and not cores:
        os.environ[MPS_PERCENTAGE] = f"{share_pct:g}"
    if cores:
        os.sched_setaffinity(0, parse_cores(cores))


def parse_cores(text: str) -> frozenset[int]:
    """Numbers of cores, separated by commas. Raises ValueError."""
    try:
        cores = frozenset(int(part) for part in text.split(",")) if text else frozenset()
    except ValueError:
        cores = frozenset((-1,))
    if any(core < 0 for core in cores):
        raise ValueError(f"must be numbers of cores such as 0,1, was {text!r}")
    return cores
