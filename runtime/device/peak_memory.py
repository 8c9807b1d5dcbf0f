"""Peak memory of one inference, and the memory that is available."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

CPU = "cpu"
"""Value of `PodInfo.device` for a CPU, whose memory is that of the machine or container."""
STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Resets the high-water mark of resident memory, see proc(5)."""
MEMORY_INFO = Path("/proc/meminfo")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
CGROUP_USED = Path("/sys/fs/cgroup/memory.current")


class PeakMemory:
    """Measures from its construction to `used_bytes`."""

    def __init__(self, device: str) -> None:
        self._is_known = True
        self._is_cpu = device == CPU
        if not self._is_cpu:
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
            return
        try:
            CLEAR_REFS.write_text(RESET_PEAK)
        except OSError:  # a container may not allow it
            self._is_known = False
        self._before = _status_bytes("VmRSS")

    def used_bytes(self) -> int | None:
        """The peak above the initial memory; None if the system does not report it.

        On a CPU this is resident memory of the whole process, including concurrent work.
        """
        if not self._is_cpu:
            return max(0, torch.cuda.max_memory_allocated() - self._before)
        return max(0, _status_bytes("VmHWM") - self._before) if self._is_known else None


def available_bytes(device: str) -> int:
    """Memory available to an inference: of the GPU, else of the machine or container."""
    if device != CPU:
        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return int(torch.cuda.mem_get_info()[0]) + unused  # torch keeps freed memory
    found = re.search(r"MemAvailable:\s+(\d+) kB", MEMORY_INFO.read_text())
    available = int(found.group(1)) * 1024 if found else 0
    try:
        limit, used = CGROUP_LIMIT.read_text().strip(), int(CGROUP_USED.read_text())
    except (OSError, ValueError):
        return available
    return min(available, int(limit) - used) if limit.isdecimal() else available


def container_bytes() -> int:
    """Memory of the machine, or the limit of the container if that is less."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = CGROUP_LIMIT.read_text().strip()
    except OSError:
        return whole
    return min(whole, int(limit)) if limit.isdecimal() else whole


def _status_bytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())
    return int(found.group(1)) * 1024 if found else 0
