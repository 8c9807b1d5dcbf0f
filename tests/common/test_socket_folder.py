"""Folders for sockets outlive no process, not even a killed one."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from common.process import socket_folder
from tests import servers

_HOLDER = """
import time
from common.process import socket_folder
with socket_folder() as folder:
    (folder / "redis.sock").touch()
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_one_left_by_a_killed_process_is_removed(temporary: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER],
        cwd=servers.REPOSITORY,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    with holder:
        left = holder.stdout.readline().strip()
        with socket_folder() as own:
            assert sorted(temporary.iterdir()) == sorted([own, temporary / left])
        holder.send_signal(signal.SIGKILL)
    assert list(temporary.iterdir()) == [temporary / left]
    with socket_folder() as own:
        assert list(temporary.iterdir()) == [own]
    assert not list(temporary.iterdir())


def test_what_others_named_alike_stays(temporary: Path) -> None:
    (temporary / "pilotlight-notes").mkdir()
    with socket_folder():
        pass
    assert [path.name for path in temporary.iterdir()] == ["pilotlight-notes"]
