"""NVIDIA's MPS daemon, by which processes of several pods compute on a GPU at the same time.

One per machine, in the foreground, so that it is started again if it dies. Programs that use a GPU
connect to it when CUDA starts, by the variables of `mps_environment`; without it they share the GPU
by turns, and shares have no effect.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Final

from pilotlight.platform.supervised_process import ProcessSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

COMMAND: Final = "nvidia-cuda-mps-control"
"""Of NVIDIA's driver; without an argument it takes requests to the daemon from its input."""
NAME: Final = "MPS daemon"


def mps_problems() -> list[str]:
    """Why the daemon cannot be started here; empty: it can."""
    if shutil.which(COMMAND) is None:
        return [
            f"--mps needs the command {COMMAND}, which comes with NVIDIA's driver: leave it out"
        ]
    return []


def mps_environment(pipes: Path, logs: Path) -> dict[str, str]:
    """For the daemon and for all programs that use its GPUs. `pipes`: a short path, for sockets."""
    return {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}


def mps_spec(logs: Path, env: Mapping[str, str]) -> ProcessSpec:
    command = shutil.which(COMMAND, path=env.get("PATH")) or COMMAND
    return ProcessSpec(NAME, (command, "-f"), logs / "mps.log", env)


async def is_mps_ready(env: Mapping[str, str]) -> bool:
    """Whether the daemon answers."""
    child = await asyncio.create_subprocess_exec(
        COMMAND, env=dict(env), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    await child.communicate(b"get_server_list\n")
    return child.returncode == 0
