"""The GPUs of this machine, and which of them each pod uses."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_QUERY = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
"""It comes with the driver; torch is for the runtime alone."""
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class GpuShare:
    gpu: str
    """UUID; empty: no GPU."""
    share_pct: float
    """Part of it by MPS; 0: all."""


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The UUIDs of the GPUs that `CUDA_VISIBLE_DEVICES` leaves to this process, else of all."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    chosen = [part.strip() for part in visible.split(",")] if visible is not None else None
    if chosen is not None and all(part.startswith(("GPU-", "MIG-")) for part in chosen):
        return tuple(chosen)
    try:
        done = subprocess.run(
            _QUERY, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, env=environment
        )
    except (OSError, subprocess.SubprocessError):  # no driver, or no device that it can reach
        return ()
    found = done.stdout.split()
    if chosen is None:
        return tuple(found)
    numbers = [int(part) for part in chosen if part.isdecimal() and int(part) < len(found)]
    return tuple(found[number] for number in numbers)


def gpu_of_pod(number: int, pods: int, gpus: Sequence[str]) -> GpuShare:
    """The GPU of the pod with this number, counted from 0: pods take the GPUs in turn.

    Pods on one GPU have equal shares of its compute and memory.
    """
    if not gpus:
        return GpuShare("", 0.0)
    place = number % len(gpus)
    sharing = max(1, len(range(place, pods, len(gpus))))
    return GpuShare(gpus[place], 100 / sharing if sharing > 1 else 0.0)
