"""The memory that a model server takes: by its metrics, or by its processes where they are seen."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from common.http_client import request_blocking
from common.http_connection import HttpError

logger = logging.getLogger(__name__)

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
