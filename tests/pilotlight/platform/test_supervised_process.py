"""Supervised child processes: real ones, really killed."""

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from common.child_process import Command
from pilotlight.errors import StartFailed
from pilotlight.platform import processes
from pilotlight.platform.processes import SupervisedProcess
from pilotlight.platform.settings import PlatformSettings, pod_settings
from pilotlight.state_dir import StateDir
from tests import servers

SLEEP = ("/bin/sleep", "1000")


def _service(command: Sequence[str], folder: Path) -> SupervisedProcess:
    async def is_ready() -> bool:
        return service.child is not None and service.child.is_running

    spec = Command("child", command, os.environ, folder / "child.log")
    service = SupervisedProcess(spec, is_ready=is_ready)
    return service


async def _until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(0.005)


async def _until_running(service: SupervisedProcess, *, other_than: int = 0) -> int:
    def pid() -> int:
        child = service.child
        return child.pid if child is not None and child.is_running else 0

    await _until(lambda: pid() not in {0, other_than})
    return pid()


def _is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_a_child_that_dies_is_restarted(tmp_path: Path) -> None:
    async def scenario() -> tuple[int, int]:
        service = _service(SLEEP, tmp_path)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(service.run())
            first = await _until_running(service)
            os.kill(first, signal.SIGKILL)
            second = await _until_running(service, other_than=first)
            await service.stop(grace_s=2.0)
        return first, second

    first, second = asyncio.run(scenario())
    assert first != second
    assert not _is_alive(second)


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    stubborn = (
        sys.executable,
        "-c",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('deaf', flush=True); time.sleep(1000)",
    )

    async def scenario() -> int:
        service = _service(stubborn, tmp_path)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(service.run())
            pid = await _until_running(service)
            await _until(lambda: "deaf" in (tmp_path / "child.log").read_text())
            await service.stop(grace_s=0.1)
        return pid

    assert not _is_alive(asyncio.run(scenario()))


def test_stop_interrupts_the_restart_delay(tmp_path: Path) -> None:
    async def scenario() -> None:
        service = _service(("/bin/false",), tmp_path)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(service.run())
            await _until(lambda: service.deaths >= 3)
            await service.stop(grace_s=1.0)

    asyncio.run(scenario())


def test_a_child_that_dies_at_once_fails_with_the_end_of_its_log(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "raise SystemExit('no room left')")

    async def scenario() -> None:
        service = _service(command, tmp_path)

        async def never() -> bool:
            return False

        service._is_ready = never
        async with asyncio.TaskGroup() as group:
            group.create_task(service.run())
            try:
                await service.wait_ready(timeout_s=60)
            finally:
                await service.stop(grace_s=1.0)

    with pytest.raises(ExceptionGroup) as error:
        asyncio.run(scenario())
    assert error.group_contains(StartFailed, match="no room left")


PARENT = """
import asyncio, os, sys
from pathlib import Path
from common.child_process import Command, start

async def main():
    child = await start(Command("child", sys.argv[2:], os.environ, Path(sys.argv[1])))
    print(child.pid, flush=True)
    await child.wait()

asyncio.run(main())
"""


def test_a_child_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log"), *SLEEP],
        cwd=servers.REPOSITORY,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    descriptor = os.pidfd_open(int(parent.stdout.readline()))
    try:
        parent.kill()
        parent.wait()
        ended, _, _ = select.select([descriptor], [], [], 60.0)
        assert ended
    finally:
        os.close(descriptor)
        parent.stdout.close()


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [
        ("--port", "choose another with --port, or any free one with --port 0"),
        ("--grpc-port", "choose another with --grpc-port, or none with --grpc-port 0"),
    ],
)
def test_a_port_in_use_names_its_flag(
    monkeypatch: pytest.MonkeyPatch, flag: str, remedy: str
) -> None:
    monkeypatch.setattr(processes, "_PORT_TIMEOUT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        expected = f"port {port} of 127.0.0.1 is in use by another program: {remedy}"
        with pytest.raises(StartFailed, match=f"^{expected}$"):
            asyncio.run(processes.wait_for_port("127.0.0.1", port, flag=flag))


def test_no_pod_asks_for_the_port_of_another() -> None:
    settings = PlatformSettings(StateDir.default(), objects=StateDir.default().objects)
    assert pod_settings(settings, "pod-0", redis_url="")["grpc_port"] == 0
