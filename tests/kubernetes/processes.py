"""Programs of the cluster as child processes with a log each, and the processes of pods."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers import is_alive

LAST_LINES = 30


@dataclass
class Program:
    """A program that can be killed and restarted with the same arguments."""

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program; its log is appended."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            )

    @property
    def is_running(self) -> bool:
        return self.process is not None and is_alive(self.process.pid)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def log_tail(self) -> str:
        """The end of the log, for error messages."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"--- {self.log}", *lines[-LAST_LINES:]])


def kill_pod(name: str, variable: str = "HOSTNAME") -> None:
    """Kill the processes of a pod: those with this name in an environment variable."""
    reached = signal_pod(name, signal.SIGKILL, variable)
    assert reached, f"pod {name} has no process here"


def signal_pod(name: str, number: signal.Signals, variable: str = "HOSTNAME") -> int:
    """Send a signal to the processes of a pod on this machine's node; returns their number."""
    wanted = f"{variable}={name}".encode()
    reached = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), number)
                reached += 1
    return reached
