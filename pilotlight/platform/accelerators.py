"""The accelerators of this machine: GPUs, which pods share, and the CPU as groups of cores.

A group has as many cores as an inference has threads. By NVIDIA's MPS daemon processes of several
pods compute on a GPU at the same time. One runs per machine, in the foreground, so that it is
started again if it dies. Programs that use a GPU connect to it when CUDA starts, by the variables
of `mps_environment`; without it they share the GPU by turns, and shares have no effect.
"""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from common.child_process import Command

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


def core_groups(threads: int) -> dict[str, tuple[int, ...]]:
    """Cores by name of the accelerator, `cpu-0` first; at least one, with what cores there are.

    Profiles are measured with the same number of threads. Cores that fill no group are left over.
    """
    cores = sorted(os.sched_getaffinity(0))
    size = min(threads, len(cores))
    return {
        f"cpu-{number}": tuple(cores[number * size : (number + 1) * size])
        for number in range(len(cores) // size)
    }


def cores_of_share(
    cores: Sequence[int], share_pct: float | None, taken: Sequence[int] = ()
) -> Sequence[int]:
    """As many of the cores as the share is, rounded up: a process has whole cores.

    Those that fewest others have `taken`, so that shares of at most the whole do not overlap.
    """
    if share_pct is None:
        return cores
    count = max(1, min(len(cores), int(-(-len(cores) * share_pct // 100))))
    return sorted(sorted(cores, key=lambda core: (taken.count(core), core))[:count])


MPS_COMMAND: Final = "nvidia-cuda-mps-control"
"""Of NVIDIA's driver; without an argument it takes requests to the daemon from its input."""
MPS: Final = "MPS daemon"


def mps_problems() -> list[str]:
    """Why the daemon cannot be started here; empty: it can."""
    if shutil.which(MPS_COMMAND) is None:
        return [
            f"--mps needs the command {MPS_COMMAND}, which comes with NVIDIA's driver: leave it out"
        ]
    return []


def mps_environment(pipes: Path, logs: Path) -> dict[str, str]:
    """For the daemon and for all programs that use its GPUs. `pipes`: a short path, for sockets."""
    return {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}


def mps_spec(logs: Path, env: Mapping[str, str]) -> Command:
    command = shutil.which(MPS_COMMAND, path=env.get("PATH")) or MPS_COMMAND
    return Command(MPS, (command, "-f"), env, logs / "mps.log")


async def is_mps_ready(env: Mapping[str, str]) -> bool:
    """Whether the daemon answers."""
    child = await asyncio.create_subprocess_exec(
        MPS_COMMAND,
        env=dict(env),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    await child.communicate(b"get_server_list\n")
    return child.returncode == 0
