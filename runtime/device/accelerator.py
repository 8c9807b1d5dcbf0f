"""The accelerator of this pod, its memory, and the share that MPS and MIG leave to the pod."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from registry.domain.pod import Accelerator
from runtime.pod_process import MPS_PERCENTAGE

CPU_INFO: Final = Path("/proc/cpuinfo")
CGROUP_CPU: Final = Path("/sys/fs/cgroup/cpu.max")
CPU_BUDGET_BYTES: Final = 2 * 1024**3
GPU_BUDGET_SHARE: Final = 0.85
_MIG_PROFILE: Final = re.compile(r"MIG (\d+)(?:c\.\d+)?g\.")
_MIG_SLICES: Final = 7
"""Compute slices of a GPU that can be divided by MIG."""
CPU = "cpu"
"""Value of `PodInfo.device` for a CPU, whose memory is that of the machine or container."""
STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Resets the high-water mark of resident memory, see proc(5)."""
MEMORY_INFO = Path("/proc/meminfo")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
CGROUP_USED = Path("/sys/fs/cgroup/memory.current")


def find_accelerator(device: torch.device, environment: Mapping[str, str]) -> Accelerator:
    """The GPU that the pod sees as `device`, else the machine's CPU.

    A MIG instance is an accelerator of its own: UUID, memory and multiprocessors are those of the
    instance, and its product name ends with the profile.
    """
    if device.type == "cpu":
        return Accelerator("", _cpu_product(), container_bytes(), _cpu_cores())
    found = torch.cuda.get_device_properties(device)
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    uuid = visible if visible.startswith("MIG-") and "," not in visible else f"GPU-{found.uuid}"
    return Accelerator(uuid, found.name, found.total_memory, found.multi_processor_count)


def mps_share(environment: Mapping[str, str]) -> float:
    """Part of the accelerator's multiprocessors that MPS leaves to this process; 1 without it."""
    try:
        percentage = float(environment.get(MPS_PERCENTAGE, ""))
    except ValueError:  # the driver ignores it, too
        return 1.0
    return percentage / 100 if 0 < percentage <= 100 else 1.0


def pod_share(
    accelerator: Accelerator, environment: Mapping[str, str], configured_pct: float = 0.0
) -> float:
    """Part of the accelerator's compute: by MPS and MIG; of a CPU as configured."""
    if not accelerator.uuid:
        return configured_pct / 100 if configured_pct else 1.0
    return mps_share(environment) * mig_share(accelerator.product)


def memory_budget(
    configured_bytes: int, accelerator: Accelerator, environment: Mapping[str, str]
) -> int:
    """Bytes for models: as configured, but at most the pod's share of a GPU's memory.

    Without a configured budget the rest of the share is left to the context, to libraries and to
    inference itself. MIG divides the memory itself. A CPU pod keeps its budget: the kernel reclaims
    what it maps.
    """
    if not accelerator.uuid:
        return configured_bytes or CPU_BUDGET_BYTES
    share_bytes = int(accelerator.memory_bytes * mps_share(environment))
    return min(configured_bytes or int(GPU_BUDGET_SHARE * share_bytes), share_bytes)


def mig_share(product: str) -> float:
    """Part of the GPU's compute that a MIG instance has, by the profile in its product name."""
    profile = _MIG_PROFILE.search(product)
    return int(profile.group(1)) / _MIG_SLICES if profile else 1.0


def _cpu_product() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", CPU_INFO.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.machine()


def _cpu_cores() -> int:
    """Cores that this process may use: by its affinity, and rounded up by the container's limit."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = CGROUP_CPU.read_text().split()
        return min(cores, max(1, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # "max": no limit
        return cores


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
