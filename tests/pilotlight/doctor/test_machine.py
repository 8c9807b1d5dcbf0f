"""What `pilotlight doctor --machine` finds on this machine, and in files of others."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pilotlight.doctor import machine
from pilotlight.doctor.finding import Severity

if TYPE_CHECKING:
    from pathlib import Path


def test_the_command_examines_this_machine(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-P", "-m", "pilotlight", "doctor", "--machine", "--json",
                   "--home", str(tmp_path), "--port", str(port)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = {each["subject"]: each for each in json.loads(done.stdout)}
    assert done.returncode == 1
    assert found[f"port {port}"]["severity"] == "problem"
    assert "--port" in found[f"port {port}"]["remedy"]
    assert found["Redis"]["severity"] == "ok"


def test_little_memory_is_a_warning(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:  1048576 kB\n")
    [found] = machine._memory(meminfo)
    assert (found.severity, found.detail[:7]) == (Severity.WARNING, "1.0 GiB")


@pytest.mark.parametrize(
    ("driver", "severity"),
    [(None, "ok"), ("", "problem"), ("570.86.10", "problem"), ("580.65.06", "ok")],
)
def test_the_driver_is_new_enough_for_cuda(driver: str | None, severity: str) -> None:
    [found] = machine._gpu(driver)
    assert found.severity == severity
    assert bool(found.remedy) is (severity == "problem")


def test_a_full_disk_is_a_warning(tmp_path: Path) -> None:
    [found] = machine._disk("disk", tmp_path, 1 << 60, "free some space")
    assert (found.severity, found.remedy) == (Severity.WARNING, "free some space")
