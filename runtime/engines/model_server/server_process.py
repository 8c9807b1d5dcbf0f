"""The model server as a process of the pod (`--engine-command`), its memory, and its settings."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from common.child_process import Command, KeptProcess
from common.http_client import request_blocking
from common.http_connection import HttpError

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


TIMEOUT_S: Final = 2.0
GPU_METRIC: Final = "nv_gpu_memory_used_bytes"
"""Triton's, per GPU."""
PROCESS_METRIC: Final = "process_resident_memory_bytes"
"""Of Prometheus' clients, MLServer's among them."""
_SAMPLE: Final = re.compile(r"^([a-zA-Z_:]\w*)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)
_LISTEN: Final = "0A"


class ServerMemory:
    """Methods block."""

    def __init__(
        self, url: str, *, metrics_url: str, process_id: Callable[[], int | None] = lambda: None
    ) -> None:
        """`process_id`: of the server, if this pod started it."""
        self._port = urlsplit(url).port or 80
        self._is_local = urlsplit(url).hostname in {"127.0.0.1", "localhost", "::1"}
        self._metrics_url = metrics_url
        self._process_id = process_id

    def used_bytes(self) -> int | None:
        """Bytes of the server and its models; None where they cannot be seen."""
        if self._metrics_url:
            return self._by_metrics()
        pid = self._process_id() or (listening_process(self._port) if self._is_local else None)
        return None if pid is None else resident_bytes(pid)

    def _by_metrics(self) -> int | None:
        try:
            text = request_blocking("GET", self._metrics_url, timeout_s=TIMEOUT_S).text
        except HttpError as error:
            logger.warning("server metrics not read", extra={"error": error})
            return None
        return memory_of_metrics(text)


def memory_of_metrics(text: str) -> int | None:
    """The memory in a server's metrics: that of its GPUs, else that of its process; else None."""
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        if name in {GPU_METRIC, PROCESS_METRIC}:
            try:
                found[name] = found.get(name, 0.0) + float(value)
            except ValueError:
                continue
    for name in (GPU_METRIC, PROCESS_METRIC):
        if name in found:
            return int(found[name])
    return None


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process and its descendants; shared pages count in each."""
    if _pages(pid) is None:
        return None
    parents = {each: _parent(each) for each in process_ids()}
    family = {pid}
    while found := {each for each, parent in parents.items() if parent in family} - family:
        family |= found
    return sum(_pages(each) or 0 for each in family) * os.sysconf("SC_PAGE_SIZE")


def process_ids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _pages(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def listening_process(port: int) -> int | None:
    """The process of this user that listens on a local TCP port; None where it cannot be seen."""
    nodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in (line.split() for line in lines):
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                nodes.add(f"socket:[{fields[9]}]")
    for pid in process_ids() if nodes else ():
        if nodes & open_files(pid):
            return pid
    return None


def open_files(pid: int) -> set[str]:
    """What the descriptors of a process name; empty for another user's."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return set()
    found = set()
    for name in names:
        with suppress(OSError):  # closed meanwhile
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def server_problems(*, url: str, command: str, repository: str, metrics: str) -> list[str]:
    """Mistakes in the settings, each a line that names the flag."""
    if not url and not command:
        return [
            f"--engine-{name} needs --engine-url or --engine-command"
            for name, value in (("repository", repository), ("metrics", metrics))
            if value
        ]
    if url and command:
        return ["--engine-url and --engine-command exclude each other"]
    problems = [
        f"--engine-{name} must be a URL such as http://127.0.0.1:8000, was {value!r}"
        for name, value in (("url", url), ("metrics", metrics))
        if value and not (name == "metrics" and command) and not _is_url(value)
    ]
    if url and not repository:
        problems.append(
            "--engine-url needs --engine-repository: the folder from which the server reads models"
        )
    return problems + (_command_problems(command) if command else [])


def _is_url(text: str) -> bool:
    """Whether the text is a URL of a server over plain HTTP."""
    try:
        parts = urlsplit(text)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _command_problems(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        return [f"--engine-command cannot be read as a command: {error}"]
    text = " ".join(words)
    return [
        f"--engine-command must hold {name}, which the pod replaces, was {command!r}"
        for name in ("{port}", "{repository}")
        if name not in text
    ]
