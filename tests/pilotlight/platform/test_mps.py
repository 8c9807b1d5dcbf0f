"""The MPS daemon of a machine; a script stands in for NVIDIA's command, as it is documented."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

import pytest

from pilotlight.platform.mps import COMMAND, is_mps_ready, mps_environment, mps_spec
from pilotlight.platform.supervised_process import SupervisedProcess
from tests import servers
from tests.pilotlight.conftest import run_cli
from tests.pilotlight.platform.running import command_of, pids_of, start_platform

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pilotlight.conftest import Cli

_SCRIPT = """#!/bin/sh
# Without an argument: a request to the daemon, which must run.
pid="$CUDA_MPS_PIPE_DIRECTORY/daemon.pid"
if [ "$1" = -f ]; then
    echo $$ > "$pid"
    exec sleep 600
fi
read -r request && [ "$request" = get_server_list ] && kill -0 "$(cat "$pid")"
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A search path with the command."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / COMMAND
    command.write_text(_SCRIPT)
    command.chmod(0o700)
    found = f"{folder}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", found)
    return found


@pytest.mark.anyio
async def test_a_daemon_that_dies_is_started_again(path: str, tmp_path: Path) -> None:
    env = {"PATH": path, **mps_environment(tmp_path, tmp_path)}
    assert not await is_mps_ready(env)
    daemon = SupervisedProcess(mps_spec(tmp_path, env), is_ready=lambda: is_mps_ready(env))
    running = asyncio.create_task(daemon.run())
    try:
        await daemon.wait_ready(timeout_s=60)
        os.kill(int((tmp_path / "daemon.pid").read_text()), signal.SIGKILL)
        async with asyncio.timeout(60):
            while not (daemon.deaths and await is_mps_ready(env)):  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.02)
    finally:
        await daemon.stop(grace_s=5)
        await running
    assert not await is_mps_ready(env)


def test_without_the_command_it_is_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ran = cli("up", "--mps", "--placement", "magic", "--home", str(tmp_path / "home"))
    assert ran.status == 2
    assert f"--mps needs the command {COMMAND}" in ran.err
    assert "--placement must be one of" in ran.err


@pytest.mark.slow
def test_pods_find_the_daemon_and_serve_on_without_it(path: str, tmp_path: Path) -> None:
    uri = f"file://{tmp_path / 'tiny-t5'}"
    assert run_cli("make-model", "tiny-t5", str(tmp_path / "tiny-t5")).status == 0
    platform = start_platform(tmp_path / "home", "--no-s3", "--pods", "1", "--mps")
    try:
        platform.apply(tmp_path, "a", policy="auto", uri=uri)
        assert platform.cli("predict", "a", "a cat").status == 0
        pids = [pid for pid in pids_of(platform) if "runtime.forkserver" in command_of(pid)]
        [pipes] = {_variable(pid, "CUDA_MPS_PIPE_DIRECTORY") for pid in pids}
        daemon = f"{pipes}/daemon.pid"
        first = _read(daemon)
        os.kill(first, signal.SIGKILL)
        assert platform.cli("predict", "a", "a cat").status == 0
        servers.wait_until(lambda: _read(daemon) not in {first, 0}, what="another daemon")
    finally:
        assert platform.cli("down").status == 0
    assert not os.path.exists(pipes)


def _read(path: str) -> int:
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        return int(file.read())
    return 0


def _variable(pid: int, name: str) -> str:
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = dict(each.partition(b"=")[::2] for each in file.read().split(b"\0"))
    return pairs[name.encode()].decode()
