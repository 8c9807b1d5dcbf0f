"""The accelerator of this pod, and the share of it that MPS and MIG leave to the pod."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from registry.domain.accelerator import Accelerator
from runtime.accelerator_share import MPS_PERCENTAGE
from runtime.device.peak_memory import container_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

CPU_INFO: Final = Path("/proc/cpuinfo")
CGROUP_CPU: Final = Path("/sys/fs/cgroup/cpu.max")
CPU_BUDGET_BYTES: Final = 2 * 1024**3
GPU_BUDGET_SHARE: Final = 0.85
_MIG_PROFILE: Final = re.compile(r"MIG (\d+)(?:c\.\d+)?g\.")
_MIG_SLICES: Final = 7
"""Compute slices of a GPU that can be divided by MIG."""


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
