"""The processes of the platform, by role, from /proc; their descriptors, ports and files."""

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROLES: Final = (
    ("pilotlight: supervisor ", "supervisor"),
    ("pilotlight: gateway ", "gateway"),
    ("pilotlight: autoscaler ", "autoscaler"),
    ("pilotlight: scheduler ", "scheduler"),
    ("pilotlight: forkserver ", "forkserver"),
    ("pilotlight: pod-", "forkserver"),  # it and its children, as their parents say
    ("pilotlight.platform.supervisor", "supervisor"),
    (" -m gateway ", "gateway"),
    (" -m autoscaler ", "autoscaler"),
    (" -m workflows ", "scheduler"),
    ("runtime.forkserver", "forkserver"),
    ("serve s3", "object store"),
)
"""By title, and by command line until a process has set its title."""
MARK: Final = "CHAOS_LEDGER"
"""A variable in the environment of every process that the campaign starts."""


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    role: str
    started: int
    """In the kernel's ticks: tells processes with the same number apart."""

    @property
    def identity(self) -> tuple[int, int]:
        """Numbers are used again: some kernels have 32,768 of them."""
        return self.pid, self.started

    def descriptors(self) -> int:
        with suppress(OSError):
            return len(os.listdir(f"/proc/{self.pid}/fd"))
        return 0

    def memory_bytes(self) -> int:
        """Anonymous memory, what it has inherited included, and its part of shared memory.

        Not its proportional share of all (PSS): a pod that writes to what the forkserver has read
        moves that from their common account to both of their own, and nothing has grown.
        """
        found = 0
        with suppress(OSError, ValueError):
            for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Anonymous:", "Pss_Shmem:")):
                    found += int(line.split()[1]) * 1024
        return found

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


class ProcessTable:
    """The living processes that inherited the mark with this ledger, with their roles.

    It remembers them, since /proc says less of one that is about to end: its environment goes
    before its sockets, and its parent may go before it.
    """

    def __init__(self, ledger: str) -> None:
        self._mark = f"{MARK}={ledger}".encode()
        self._roles: dict[tuple[int, int], str] = {}
        """By number and start."""
        self._lock = threading.Lock()

    def read(self) -> list[Process]:
        with self._lock:
            entries = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
            seen = {each.pid: each for entry in entries if (each := self._look(entry)) is not None}
            found = [
                Process(each.pid, each.parent, self._role(each, seen), each.started)
                for each in seen.values()
            ]
            self._roles = {(each.pid, each.started): each.role for each in found}
            return found

    def _look(self, pid: int) -> Process | None:
        """The process by its command line; None if it is not the platform's or has ended."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() + " "
        except OSError:
            return None
        parent, started = int(stat[1]), int(stat[19])
        if stat[0] in "ZX" and int(stat[17]) < 2:  # its other threads may still hold its sockets
            return None
        if self._mark in environment and command.strip():  # a dying one's command goes first
            role = next((role for part, role in _ROLES if part in command), "other")
            return Process(pid, parent, role, started)
        known = self._roles.get((pid, started))
        return None if known is None else Process(pid, parent, known, started)

    def _role(self, process: Process, seen: dict[int, Process]) -> str:
        """A child of the forkserver, with its command line, is a pod; a child of a pod is other."""
        if process.role != "forkserver":
            return process.role
        known = self._roles.get((process.pid, process.started))
        if known is not None:
            return known
        parent = seen.get(process.parent)
        if parent is None or parent.role not in {"forkserver", "pod", "other"}:
            return "forkserver"
        return "pod" if self._role(parent, seen) == "forkserver" else "other"


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
