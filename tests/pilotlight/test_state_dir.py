import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pilotlight.errors import NotRunning
from pilotlight.state_dir import PlatformState, StateDir
from tests import servers
from tests.pilotlight.conftest import Cli

HOLD = """
import sys
from pathlib import Path
from pilotlight.state_dir import PlatformState, StateDir
home = StateDir(Path(sys.argv[1]))
with home.lock():
    home.write_state(PlatformState(pid=1, phase="ready", gateway="http://127.0.0.1:1"))
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "home")


def _hold(home: StateDir) -> subprocess.Popen[bytes]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(home.root)],
        cwd=servers.REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


def test_no_platform_runs_in_a_missing_folder(home: StateDir) -> None:
    assert not home.is_locked()
    assert home.read_state() is None
    with pytest.raises(NotRunning, match="pilotlight up --detach"):
        home.require_ready()


def test_the_phase_is_starting_before_ready(home: StateDir) -> None:
    with home.lock():
        state = home.read_state()
        assert state == PlatformState(pid=os.getpid(), phase="starting")
        with pytest.raises(NotRunning, match="still starting"):
            home.require_ready()


def test_releases_lock_and_state_file(home: StateDir) -> None:
    with home.lock():
        pass
    assert not home.is_locked()
    assert not home.state_file.exists()
    with home.lock():
        assert home.is_locked()


def test_checking_the_lock_does_not_prevent_a_start(home: StateDir) -> None:
    for _ in range(100):
        home.is_locked()
        with home.lock():
            assert home.is_locked()


def test_a_state_file_left_by_a_crash_is_ignored(home: StateDir) -> None:
    holder = _hold(home)
    assert home.require_ready().gateway == "http://127.0.0.1:1"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    servers.end_process(holder)
    # pid 1 in the file is alive, so a check of the pid would find a platform
    assert json.loads(home.state_file.read_text())["pid"] == 1
    assert home.read_state() is None
    with home.lock():
        state = home.read_state()
    assert state is not None
    assert state.phase == "starting"


def test_says_that_a_platform_cannot_write_there(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    home = tmp_path / "file" / "home"
    refused = cli("up", "--no-s3", "--home", str(home))
    assert (refused.status, refused.out) == (1, "")
    assert f"cannot write to {home}: Not a directory; it keeps its state" in refused.err
    assert "no platform runs in" in cli("down", "--home", str(home)).out


def test_a_gateway_that_is_gone_comes_back(cli: Cli) -> None:
    home = StateDir(cli.home)
    with home.lock():
        home.write_state(PlatformState(1, "ready", gateway="http://127.0.0.1:1"))
        failed = cli("predict", "embed", "a cat")
    assert failed.status == 1
    assert "the platform restarts a gateway that has ended: try again" in failed.err
    assert "restarts" not in cli("predict", "embed", "a", "--gateway", "127.0.0.1:1").err
