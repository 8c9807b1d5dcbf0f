"""The supervisor's process: what it says, and what it logs, where it starts no platform."""

import json
import subprocess
import sys
from pathlib import Path

from pydantic import TypeAdapter

from pilotlight.platform.settings import PlatformSettings
from pilotlight.state_dir import StateDir
from tests import servers


def test_a_refusal_is_one_line_of_the_log(tmp_path: Path) -> None:
    home = StateDir(tmp_path / "home")
    settings = PlatformSettings(home, objects=tmp_path / "objects")
    with home.lock():
        ended = subprocess.run(
            [sys.executable, "-m", "pilotlight.platform.supervisor"],
            cwd=servers.REPOSITORY,
            input=TypeAdapter(PlatformSettings).dump_json(settings),
            capture_output=True,
            check=False,
        )
    assert json.loads(ended.stdout)["status"] == 2, ended.stderr.decode()
    [line] = (home.logs / "supervisor.log").read_text().splitlines()
    assert "the platform ended error=a platform is already running" in line
