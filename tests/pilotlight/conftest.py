"""Runs the command line in tests: in this process for speed, or as a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pilotlight import output
from pilotlight.cli import main
from tests import servers

SAMPLES = servers.REPOSITORY / "manifests" / "samples"
SERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
spec:
  predictor:
    model:
      modelFormat: {{name: huggingface}}
      storageUri: s3://models/{folder}
"""


def write_yaml(folder: Path, **files: str) -> str:
    """Write each file to the folder, with the suffix `.yaml`; returns the folder."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return str(folder)


@dataclass(frozen=True)
class CommandResult:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output, all of which is JSON."""
        return json.loads(self.out)


def run_cli(*arguments: str, timeout_s: float = 600.0) -> CommandResult:
    done = subprocess.run(
        [sys.executable, "-m", "pilotlight", *arguments],
        cwd=servers.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Cli:
    """Runs the command line in this process, with a state directory of its own."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    home: Path
    more: tuple[str, ...] = ()
    """What follows all arguments."""

    def __call__(self, *arguments: str) -> CommandResult:
        self.monkeypatch.setattr(sys, "argv", ["pilotlight", *arguments, *self.more])
        try:
            status = main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        captured = self.capsys.readouterr()
        return CommandResult(status, captured.out, captured.err)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    for name in [name for name in os.environ if name.startswith("PILOTLIGHT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PILOTLIGHT_HOME", str(tmp_path / "home"))
    # No note on a long wait: on a busy machine, a test may wait for long
    monkeypatch.setattr(output, "_SILENCE_S", 600.0)
    return Cli(monkeypatch, capsys, tmp_path / "home")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[servers.RedisServer]:
    with servers.redis_server(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def verb(cli: Cli, redis: servers.RedisServer) -> Cli:
    """Runs verbs on a registry of the test's own."""
    return replace(cli, more=("--redis-url", redis.url))
