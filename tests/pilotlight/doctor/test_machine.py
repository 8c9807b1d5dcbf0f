"""What `pilotlight doctor --machine` finds on this machine, and in files of others."""

import inspect
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from pilotlight.cli import create_app
from pilotlight.doctor import Severity, machine
from tests.pilotlight.conftest import Cli


def test_the_command_examines_this_machine(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [
            sys.executable,
            "-P",
            "-m",
            "pilotlight",
            "doctor",
            "--machine",
            "--json",
            "--home",
            str(tmp_path),
            "--port",
            str(port),
        ]
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


def test_without_a_kubeconfig_this_machine_is_examined(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    ran = cli("doctor", "--port", "0")
    assert "Redis" in ran.out
    assert "--context NAME" in ran.err


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        pytest.param((), 1, "use --machine for this machine", id="a kubeconfig without context"),
        pytest.param(("--context", "none"), 1, "no cluster", id="unknown context"),
        pytest.param(("--context", "a", "--machine"), 2, "give one", id="both"),
    ],
)
def test_with_a_kubeconfig_its_cluster_is_examined(
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    status: int,
    text: str,
) -> None:
    pytest.importorskip("kubernetes")
    file = tmp_path / "config"
    file.write_text("apiVersion: v1\nkind: Config\n")
    monkeypatch.setenv("KUBECONFIG", str(file))
    ran = cli("doctor", *arguments)
    assert ran.status == status
    assert text in ran.err


def test_remedies_name_flags_that_exist() -> None:
    command: Any = get_command(create_app())
    flags = {name for each in command.commands["up"].params for name in each.opts}
    text = inspect.getsource(machine)
    named = set(re.findall(r"(?<![\w=-])--[a-z][a-z-]+", text))
    assert named - {"--query-gpu", "--format", "--shm-size", "--machine"} <= flags
