"""NVIDIA's MPS daemon for the time of a measurement."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from pilotlight.errors import StartFailed
from pilotlight.platform.accelerators import MPS_COMMAND, is_mps_ready, mps_environment, mps_spec
from pilotlight.platform.processes import SupervisedProcess

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0


@asynccontextmanager
async def mps_daemon() -> AsyncIterator[dict[str, str]]:
    """The environment in which programs find it; raises StartFailed where it cannot be started."""
    if shutil.which(MPS_COMMAND) is None:
        raise StartFailed(f"the command {MPS_COMMAND} of NVIDIA's driver was not found")
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        env = {**os.environ, **mps_environment(Path(folder), Path(folder))}
        daemon = SupervisedProcess(mps_spec(Path(folder), env), is_ready=partial(is_mps_ready, env))
        running = asyncio.create_task(daemon.run())
        try:
            await daemon.wait_ready(timeout_s=_START_TIMEOUT_S)
            yield env
        finally:
            await daemon.stop(grace_s=_STOP_TIMEOUT_S)
            await running


async def mps_clients(env: Mapping[str, str]) -> int:
    """Programs that are connected; one that reaches no daemon runs on without MPS."""
    servers = await _ask("get_server_list", env)
    lists = [await _ask(f"get_client_list {server}", env) for server in servers]
    return sum(len(each) for each in lists)


async def _ask(request: str, env: Mapping[str, str]) -> list[str]:
    """The lines of the answer that are numbers of processes."""
    child = await asyncio.create_subprocess_exec(
        MPS_COMMAND,
        env=dict(env),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    answer, _ = await child.communicate(f"{request}\n".encode())
    return [line for line in answer.decode().split() if line.isdecimal()]
