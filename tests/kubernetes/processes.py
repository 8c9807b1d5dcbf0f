"""Programs of the cluster as child processes, each with a log of its own."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.servers import end_process, is_alive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LAST_LINES = 30


@dataclass
class Program:
    """A program that can be ended, killed and started again with the same arguments."""

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its log goes on where it was."""
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
        """Whether its process is there."""
        return self.process is not None and is_alive(self.process.pid)

    def kill(self) -> None:
        """End it as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def end(self) -> None:
        """End it in order."""
        if self.process is not None:
            end_process(self.process)

    def last_words(self) -> str:
        """The end of its log, for messages about failures."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"--- {self.log}", *lines[-LAST_LINES:]])
