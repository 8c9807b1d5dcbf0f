"""The processes of the platform, by role, from /proc; their descriptors, ports and files."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROLES: Final = (
    ("pilotlight.platform.supervisor", "supervisor"),
    (" -m gateway ", "gateway"),
    (" -m autoscaler ", "autoscaler"),
    ("runtime.forkserver", "forkserver"),
    ("serve s3", "object store"),
)
MARK: Final = "CHAOS_LEDGER"
"""A variable in the environment of every process that the campaign starts."""


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    role: str
    started: int
    """In the kernel's ticks: tells processes with the same number apart."""

    def descriptors(self) -> int:
        with suppress(OSError):
            return len(os.listdir(f"/proc/{self.pid}/fd"))
        return 0

    def memory_bytes(self) -> int:
        """Memory of this process alone (PSS where the kernel gives it)."""
        with suppress(OSError, ValueError):
            for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
        return 0

    def open_deleted_files(self) -> list[str]:
        """Files that it holds open although they were deleted, which still take disk space."""
        found = []
        with suppress(OSError):
            for name in os.listdir(f"/proc/{self.pid}/fd"):
                with suppress(OSError):
                    target = os.readlink(f"/proc/{self.pid}/fd/{name}")
                    if target.endswith(" (deleted)"):
                        found.append(target)
        return found


def platform_processes(ledger: str) -> list[Process]:
    """All living processes that inherited the campaign's mark, with their roles.

    A child of the forkserver with the forkserver's command line is a pod; a child of a pod is one
    of its sandbox's processes, which end with it.
    """
    entries = (entry for entry in os.listdir("/proc") if entry.isdigit())
    found = [each for entry in entries if (each := _read(int(entry), ledger)) is not None]
    forked = {each.pid: each.parent for each in found if each.role == "forkserver"}
    return [
        each
        if each.role != "forkserver" or each.parent not in forked
        else Process(
            each.pid, each.parent, "other" if forked[each.parent] in forked else "pod", each.started
        )
        for each in found
    ]


def _read(pid: int, ledger: str) -> Process | None:
    try:
        if f"{MARK}={ledger}".encode() not in Path(f"/proc/{pid}/environ").read_bytes():
            return None
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() + " "
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if stat[0] in "ZX":
        return None
    role = next((role for part, role in _ROLES if part in command), "other")
    return Process(pid, int(stat[1]), role, int(stat[19]))


def listening_ports(pids: set[int]) -> set[int]:
    """TCP ports on which these processes listen."""
    inodes = set()
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports
