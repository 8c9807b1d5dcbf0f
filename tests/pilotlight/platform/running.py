"""A detached platform of real processes, for tests that use it as a user does."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from pilotlight.state_dir import StateDir
from tests import servers
from tests.pilotlight.conftest import CommandResult, run_cli

MODEL = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
  annotations:
    pilotlight.io/policy: {policy}
spec:
  predictor:
    model:
      modelFormat: {{name: huggingface}}
      storageUri: {uri}
"""


@dataclass(frozen=True)
class RunningPlatform:
    """A detached platform."""

    home: Path
    facts: dict[str, Any]

    @property
    def url(self) -> str:
        return str(self.facts["gateway"])

    def cli(self, *arguments: str) -> CommandResult:
        """Run a verb on the platform."""
        return run_cli(*arguments, "--home", str(self.home))

    def get(self, what: str) -> list[dict[str, Any]]:
        """`get models` or `get pods` as JSON."""
        document = self.cli("get", what, "--json").document
        assert isinstance(document, list)
        return document

    def apply(self, folder: Path, name: str, *, policy: str, uri: str) -> None:
        """Create one model; returns when the gateway knows it."""
        path = folder / f"{name}.yaml"
        path.write_text(MODEL.format(name=name, policy=policy, uri=uri))
        assert self.cli("apply", "-f", str(path)).status == 0
        with self.client() as client:
            servers.wait_until(
                lambda: client.get(f"/v2/models/{name}").status_code != 404, what=f"{name} known"
            )

    def client(self) -> httpx.Client:
        """An HTTP client of the gateway."""
        return httpx.Client(base_url=self.url, trust_env=False, timeout=60)

    def loads_total(self) -> int:
        """Loads completed by all pods."""
        return sum(pod["loads_total"] for pod in self.get("pods"))


def start_platform(home: Path, *more: str) -> RunningPlatform:
    more = ("--no-autoscaler", *more)  # the tests count cold starts
    ran = run_cli("up", "--detach", "--json", "--port", "0", "--home", str(home), *more)
    assert ran.status == 0, ran.err
    return RunningPlatform(home, ran.document)


def command_of(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode(errors="replace")
    return ""


def pids_of(running: RunningPlatform) -> set[int]:
    """The supervisor and all of its descendants."""
    parents = {}
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError), open(f"/proc/{int(entry)}/stat") as stat:
            parents[int(entry)] = int(stat.read().rpartition(")")[2].split()[1])
    found = {int(running.facts["pid"])}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def assert_stopped(running: RunningPlatform, pids: set[int]) -> None:
    servers.wait_until(
        lambda: not any(servers.is_alive(pid) for pid in pids), what="processes gone"
    )
    assert not StateDir(running.home).is_locked()
    with pytest.raises(httpx.ConnectError):
        httpx.get(running.url, trust_env=False, timeout=60)
