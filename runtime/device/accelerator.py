"""The accelerator of this pod: its memory, the pod's share by MPS and MIG, and NVML's readings.

NVML asks the driver without CUDA, so it works for a GPU that CUDA can no longer use.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from registry.domain.pod import Accelerator, GpuReading
from runtime.metrics import GPU_BUSY, GPU_TEMPERATURE, GPU_USED_BYTES, GPU_XID
from runtime.pod_process import MPS_PERCENTAGE
from runtime.threads import in_thread

logger = logging.getLogger(__name__)

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

    The default leaves a part of the share to the CUDA context, libraries and inference. A MIG
    instance's memory is a share already. A CPU pod's budget has no upper limit, since the kernel
    reclaims mapped files.
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


def bind_near(device: torch.device) -> None:
    """Run the threads that start from now on at the GPU's NUMA node, which has their memory, too.

    Not where the process has been given only a part of the node's cores.
    """
    found: Any = torch.cuda.get_device_properties(device)  # torch's types lack the address
    address = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
    cores = cores_near(address)
    if cores and cores < os.sched_getaffinity(0):
        os.sched_setaffinity(0, cores)
        logger.info("bound to the GPU's NUMA node", extra={"gpu": address, "cores": sorted(cores)})


def cores_near(address: str, system: Path = Path("/sys")) -> set[int]:
    """Cores of the NUMA node of a PCI device; none if the kernel does not name one."""
    try:
        node = (system / "bus/pci/devices" / address / "numa_node").read_text().strip()
        listed = (system / f"devices/system/node/node{node}/cpulist").read_text()
    except OSError:
        return set()
    ends = [each.split("-") for each in listed.strip().split(",") if each]
    return {core for each in ends for core in range(int(each[0]), int(each[-1]) + 1)}


class PeakMemory:
    """Peak memory between construction and `used_bytes`."""

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


Value = TypeVar("Value")

OFF_THE_BUS: Final = 79
FATAL_XIDS: Final = {
    48: "an uncorrectable error of its memory",
    62: "its microcontroller halted",
    OFF_THE_BUS: "it has fallen off the bus",
    95: "an uncontained error of its memory",
    119: "its system processor does not answer",
    120: "its system processor failed",
    140: "an unrecovered error of its memory",
}
"""Errors after which no process can use the GPU until it is reset. Others, such as 13 and 31,
concern one process, to which CUDA reports them. Source: NVIDIA, "Xid errors"."""
_MAX_EVENTS: Final = 64
"""Limit per reading; the driver keeps the others."""


class GpuLost(Exception):
    """No process can use the GPU until it is reset."""


class GpuSensors:
    """Reads one GPU by `library`, `cuda.bindings.nvml`. Methods block; one thread at a time."""

    def __init__(self, accelerator: Accelerator, library: Any) -> None:
        """Raises the library's errors."""
        self.name = f"{accelerator.uuid} ({accelerator.product})"
        self._library = library
        self._xid = 0
        library.init_v2()
        try:
            self._handle = library.device_get_handle_by_uuid(accelerator.uuid)
            self._events = self._open_events()
        except BaseException:
            library.shutdown()
            raise

    def read(self) -> GpuReading:
        """The current readings; raises GpuLost."""
        library, handle = self._library, self._handle
        self._read_events()
        busy = self._read_value(lambda: float(library.device_get_utilization_rates(handle).gpu))
        used = self._read_value(lambda: int(library.device_get_memory_info_v2(handle).used))
        sensor = library.TemperatureSensors.GPU
        temperature = self._read_value(
            lambda: float(library.device_get_temperature_v(handle, sensor))
        )
        return GpuReading(busy, used, temperature, self._xid)

    def close(self) -> None:
        if self._events is not None:
            self._library.event_set_free(self._events)
        self._library.shutdown()

    def _open_events(self) -> Any:
        """An event set for the GPU's errors; None if the driver does not report them."""
        library = self._library
        events = library.event_set_create()
        try:
            library.device_register_events(
                self._handle, library.EventType.XID_CRITICAL_ERROR, events
            )
        except library.NvmlError as error:  # a MIG instance, or a container without the right
            logger.info("no errors of the GPU are told", extra={"gpu": self.name, "error": error})
            library.event_set_free(events)
            return None
        return events

    def _read_events(self) -> None:
        if self._events is None:
            return
        for _ in range(_MAX_EVENTS):
            try:
                event = self._library.event_set_wait_v2(self._events, 0)
            except self._library.TimeoutError:  # no more
                return
            except self._library.NvmlError as error:
                self._raise_if_lost(error)
                return
            self._xid = int(event.event_data)
            logger.error("error of the GPU", extra={"gpu": self.name, "xid": self._xid})
            if self._xid in FATAL_XIDS:
                raise GpuLost(f"GPU {self.name}: {FATAL_XIDS[self._xid]} (XID {self._xid})")

    def _read_value(self, read: Callable[[], Value]) -> Value | None:
        """A reading, None if the driver has none; raises GpuLost."""
        try:
            return read()
        except self._library.NvmlError as error:
            self._raise_if_lost(error)
            return None

    def _raise_if_lost(self, error: Exception) -> None:
        library = self._library
        if isinstance(error, (library.GpuIsLostError, library.ResetRequiredError)):
            raise GpuLost(f"GPU {self.name}: {FATAL_XIDS[OFF_THE_BUS]} ({error})") from error


def open_sensors(accelerator: Accelerator) -> GpuSensors | None:
    """The sensors of a pod's GPU; None, with a line in the log, where NVML cannot be used."""
    try:
        from cuda.bindings import nvml  # comes with torch for CUDA 13; older ones lack it

        return GpuSensors(accelerator, nvml)
    except Exception as error:  # a missing driver, library or function, each with its own error
        logger.warning("no metrics of the GPU", extra={"gpu": accelerator.uuid, "error": error})
        return None


class GpuWatch:
    """Publishes a GPU's readings periodically; does nothing on a CPU or without NVML."""

    def __init__(
        self,
        accelerator: Accelerator,
        on_lost: Callable[[Exception], None],
        *,
        interval_s: float,
        open_: Callable[[Accelerator], GpuSensors | None] = open_sensors,
    ) -> None:
        """`on_lost` is called once, with an error that names the GPU."""
        self.reading: GpuReading | None = None
        """The latest reading."""
        self._accelerator = accelerator
        self._on_lost = on_lost
        self._interval_s = interval_s
        self._open = open_

    async def run(self) -> None:
        """Read until cancelled, or until the GPU is lost."""
        if not self._accelerator.uuid:
            return
        thread = ThreadPoolExecutor(1, "gpu-sensors")
        try:
            sensors = await in_thread(thread, self._open, self._accelerator)
            if sensors is not None:
                await self._read(sensors, thread)
        finally:
            thread.shutdown(wait=False)  # the driver may hang

    async def _read(self, sensors: GpuSensors, thread: ThreadPoolExecutor) -> None:
        try:
            while True:
                self._publish(await in_thread(thread, sensors.read))
                await asyncio.sleep(self._interval_s)
        except GpuLost as error:
            self._on_lost(error)
        finally:
            thread.submit(sensors.close)

    def _publish(self, reading: GpuReading) -> None:
        self.reading = reading
        gpu = self._accelerator.uuid
        if reading.busy_pct is not None:
            GPU_BUSY.labels(gpu=gpu).set(reading.busy_pct / 100)
        if reading.used_bytes is not None:
            GPU_USED_BYTES.labels(gpu=gpu).set(reading.used_bytes)
        if reading.temperature_c is not None:
            GPU_TEMPERATURE.labels(gpu=gpu).set(reading.temperature_c)
        GPU_XID.labels(gpu=gpu).set(reading.xid)
