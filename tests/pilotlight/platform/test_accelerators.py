"""GPUs, shares of cores and the MPS daemon; scripts stand in for NVIDIA's commands."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from pilotlight.platform.accelerators import (
    MPS_COMMAND,
    GpuShare,
    cores_of_share,
    gpu_of_pod,
    is_mps_ready,
    mps_environment,
    mps_spec,
    visible_gpus,
)
from pilotlight.platform.processes import SupervisedProcess
from tests import servers
from tests.pilotlight.conftest import Cli, run_cli
from tests.pilotlight.platform.running import command_of, pids_of, start_platform


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Two GPUs."""
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho GPU-a\necho GPU-b\n")
    command.chmod(0o700)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param(None, ("GPU-a", "GPU-b"), id="all"),
        pytest.param("1", ("GPU-b",), id="number"),
        pytest.param("1,0", ("GPU-b", "GPU-a"), id="order"),
        pytest.param("GPU-b", ("GPU-b",), id="uuid"),
        pytest.param("MIG-1", ("MIG-1",), id="mig"),
        pytest.param("", (), id="none"),
        pytest.param("-1", (), id="none-by-number"),
        pytest.param("7", (), id="unknown"),
    ],
)
def test_finds_the_gpus_that_are_visible(
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    expected: tuple[str, ...],
) -> None:
    monkeypatch.setenv("PATH", environment["PATH"])
    chosen = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_gpus(environment | chosen) == expected


def test_a_machine_without_a_driver_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus({"PATH": str(tmp_path)}) == ()


@pytest.mark.parametrize(
    ("pods", "gpus", "expected"),
    [
        pytest.param(2, ("a", "b"), [("a", 0.0), ("b", 0.0)], id="one-each"),
        pytest.param(2, ("a",), [("a", 50.0), ("a", 50.0)], id="two-share"),
        pytest.param(3, ("a", "b"), [("a", 50.0), ("b", 0.0), ("a", 50.0)], id="uneven"),
        pytest.param(1, (), [("", 0.0)], id="no-gpu"),
    ],
)
def test_pods_take_the_gpus_in_turn(
    pods: int, gpus: tuple[str, ...], expected: list[tuple[str, float]]
) -> None:
    found = [gpu_of_pod(number, pods, gpus) for number in range(pods)]
    assert found == [GpuShare(gpu, share) for gpu, share in expected]


CORES = (4, 5, 6, 7)


@pytest.mark.parametrize(
    ("share_pct", "taken", "found"),
    [
        pytest.param(None, (4, 5), [4, 5, 6, 7], id="no-share-is-all"),
        pytest.param(50.0, (), [4, 5], id="half"),
        pytest.param(50.0, (4, 5), [6, 7], id="the-other-half"),
        pytest.param(30.0, (4, 5, 6), [4, 7], id="rounded-up-on-the-least-taken"),
        pytest.param(1.0, (4, 4, 5, 6, 7), [5], id="at-least-one"),
        pytest.param(100.0, (4,), [4, 5, 6, 7], id="whole"),
    ],
)
def test_a_share_has_the_cores_that_fewest_have(
    share_pct: float | None, taken: tuple[int, ...], found: list[int]
) -> None:
    assert list(cores_of_share(CORES, share_pct, taken)) == found


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
    command = folder / MPS_COMMAND
    command.write_text(_SCRIPT)
    command.chmod(0o700)
    found = f"{folder}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", found)
    return found


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
    assert f"--mps needs the command {MPS_COMMAND}" in ran.err
    assert "--placement must be one of" in ran.err


@pytest.mark.slow
def test_pods_find_the_daemon_and_serve_on_without_it(path: str, tmp_path: Path) -> None:
    uri = f"file://{tmp_path / 'tiny-t5'}"
    assert run_cli("make-model", "tiny-t5", str(tmp_path / "tiny-t5")).status == 0
    platform = start_platform(tmp_path / "home", "--no-s3", "--pods", "1", "--mps")
    try:
        platform.apply(tmp_path, "a", policy="auto", uri=uri)
        assert platform.cli("predict", "a", "a cat").status == 0
        pids = [pid for pid in pids_of(platform) if "pilotlight: pod-0" in command_of(pid)]
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
