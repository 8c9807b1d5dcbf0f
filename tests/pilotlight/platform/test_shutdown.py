"""The end of a platform, however it ends: no process, lock or file remains."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from pilotlight.state_dir import StateDir
from tests import servers
from tests.pilotlight.platform.running import (
    MODEL,
    RunningPlatform,
    assert_stopped,
    command_of,
    pids_of,
    start_platform,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def small(tmp_path: Path, objects: Path) -> Iterator[RunningPlatform]:
    """A platform of two pods that the test ends."""
    running = start_platform(tmp_path / "home", "--pods", "2", "--objects", str(objects))
    try:
        yield running
    finally:
        running.cli("down")


def test_down_leaves_nothing_behind(small: RunningPlatform) -> None:
    pids = pids_of(small)
    assert len(pids) >= 7  # supervisor, redis, object store, gateway, forkserver, two pods
    stopped = small.cli("down", "--json")
    assert stopped.document["stopped"] is True
    assert not Path(f"/proc/{small.facts['pid']}/exe").exists(), "down waits for the supervisor"
    assert_stopped(small, pids)
    assert sorted(path.name for path in small.home.iterdir()) == [
        "lock",
        "logs",
        "machine.json",
        "sums",
    ]


def test_while_down_runs_workflows_are_refused_as_the_platform_drains(
    small: RunningPlatform,
) -> None:
    """The scheduler ends before the gateway."""
    refusals = set()
    with httpx.Client(trust_env=False, timeout=60) as client, ThreadPoolExecutor(1) as thread:
        url = f"{small.facts['gateway']}/v1/workflows"
        assert client.get(url).status_code == 200
        down = thread.submit(small.cli, "down")
        while not down.done():
            with contextlib.suppress(httpx.TransportError):
                response = client.get(url)
                if response.status_code != 200:
                    refusals.add((response.status_code, response.headers["x-pilotlight-reason"]))
    assert refusals <= {(503, "draining")}, refusals


def test_after_a_killed_supervisor_another_platform_starts_with_its_models(
    small: RunningPlatform, tmp_path: Path
) -> None:
    pids = pids_of(small)
    small.apply(tmp_path, "kept", policy="auto", uri="s3://models/absent")
    kept = StateDir(small.home).declared_file("default")
    servers.wait_until(lambda: kept.exists() and b"kept" in kept.read_bytes(), what="model kept")
    os.kill(small.facts["pid"], signal.SIGKILL)
    assert_stopped(small, pids)
    again = start_platform(small.home, "--pods", "2", "--no-s3")
    assert again.facts["pid"] != small.facts["pid"]
    assert len(again.get("pods")) == 2
    assert [model["name"] for model in again.get("models")] == ["kept"]
    assert not Path(small.facts["redis_url"].removeprefix("unix://")).parent.exists()


def test_a_signal_during_the_start_leaves_nothing_behind(tmp_path: Path) -> None:
    arguments = ["up", "--port", "0", "--no-s3", "--home", str(tmp_path / "home")]
    with (
        (tmp_path / "err").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "pilotlight", *arguments],
            cwd=servers.REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        ) as up,
    ):
        running = RunningPlatform(
            tmp_path / "home", {"pid": up.pid, "gateway": "http://127.0.0.1:1"}
        )
        servers.wait_until(
            lambda: any("pilotlight: forkserver" in command_of(pid) for pid in pids_of(running))
        )
        pids = pids_of(running)
        up.send_signal(signal.SIGTERM)
        assert up.wait(120) == 128 + signal.SIGTERM, (tmp_path / "err").read_text()
    assert_stopped(running, pids - {up.pid})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_foreground_platform_in_order(
    tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(MODEL.format(name="m", policy="auto", uri="s3://models/t5-small"))
    arguments = ["up", "--pods", "2", "--port", "0", "--no-s3", "--json", "-f", str(path)]
    with (
        (tmp_path / "err").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "pilotlight", *arguments, "--home", str(tmp_path / "home")],
            cwd=servers.REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        ) as up,
    ):
        home = StateDir(tmp_path / "home")
        servers.wait_until(
            lambda: (state := home.read_state()) is not None and state.phase == "ready",
            what="ready",
        )
        state = home.require_ready()
        running = RunningPlatform(home.root, {"pid": up.pid, "gateway": state.gateway})
        pids = pids_of(running)
        # The model is declared and checked: a signal before would end what has not yet begun.
        servers.wait_until(lambda: "Ready after" in (tmp_path / "err").read_text(), what="ready")
        assert len(running.get("models")) == 1
        up.send_signal(number)
        assert up.wait(120) == 0, (tmp_path / "err").read_text()
    assert_stopped(running, pids - {up.pid})
    shutil.rmtree(home.root)
