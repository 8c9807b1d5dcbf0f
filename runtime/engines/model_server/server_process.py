"""The model server as a process of the pod: `--engine-command`, restarted when it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from common.child_process import Command, KeptProcess

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 5.0
_WITHHELD: Final = ("PILOTLIGHT_", "AWS_", "STORAGE_", "HF_TOKEN")
"""Variables with the pod's own credentials, which models of others' code must not read."""


def free_ports(count: int) -> list[int]:
    """Free ports of the loopback interface, each another one."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


class ServerProcess(KeptProcess):
    """One process at a time, with the same ports for as long as the pod runs."""

    def __init__(self, command: str, repository: Path, log_file: Path | None) -> None:
        """`log_file`: for its output; None: the pod's own."""
        self.ports = free_ports(3)
        self.url = f"http://127.0.0.1:{self.ports[0]}"
        self.ended = asyncio.Event()
        """Set whenever the process has ended."""
        self._repository = repository
        words = [self.with_values(word) for word in shlex.split(command)]
        env = server_environment(os.environ)
        super().__init__(
            Command("model server", words, env, log_file, repository),
            on_end=self.ended.set,
            grace_s=STOP_TIMEOUT_S,
        )

    def with_values(self, text: str) -> str:
        """A text with the ports and the folder in place of their names."""
        port, grpc_port, metrics_port = map(str, self.ports)
        for name, value in (
            ("{repository}", str(self._repository)),
            ("{port}", port),
            ("{grpc_port}", grpc_port),
            ("{metrics_port}", metrics_port),
        ):
            text = text.replace(name, value)
        return text

    def end_hung(self) -> None:
        """End a server that hangs; `run` starts it again."""
        logger.warning("model server hangs, it is killed")
        if self.child is not None:
            self.child.kill()


def server_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The pod's environment without its credentials."""
    return {name: value for name, value in environment.items() if not name.startswith(_WITHHELD)}
