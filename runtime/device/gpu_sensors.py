"""What the driver says of the pod's GPU, through NVML: use, memory, temperature, errors (XID).

NVML asks the driver beside CUDA, so it answers for a GPU that CUDA can no longer use: `GpuWatch`
tells when the GPU is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from registry.domain.pod import Accelerator, GpuReading
from runtime.metrics import GPU_BUSY, GPU_TEMPERATURE, GPU_USED_BYTES, GPU_XID
from runtime.threads import in_thread

logger = logging.getLogger(__name__)

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
"""Errors after which no process can use the GPU until it is reset. Others, such as 13 and 31, are
of one process, which CUDA tells. Source: NVIDIA, "Xid errors"."""
_MAX_EVENTS: Final = 64
"""Read at once; the driver keeps the others."""


class GpuLost(Exception):
    """The GPU can be used by no process until it is reset."""


class GpuSensors:
    """One GPU. `library` is `cuda.bindings.nvml`. Methods block; for one thread at a time."""

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
        """The state of now; raises GpuLost."""
        library, handle = self._library, self._handle
        self._read_events()
        busy = self._ask(lambda: float(library.device_get_utilization_rates(handle).gpu))
        used = self._ask(lambda: int(library.device_get_memory_info_v2(handle).used))
        sensor = library.TemperatureSensors.GPU
        temperature = self._ask(lambda: float(library.device_get_temperature_v(handle, sensor)))
        return GpuReading(busy, used, temperature, self._xid)

    def close(self) -> None:
        if self._events is not None:
            self._library.event_set_free(self._events)
        self._library.shutdown()

    def _open_events(self) -> Any:
        """A set that gets the GPU's errors; None where the driver does not tell them."""
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

    def _ask(self, read: Callable[[], Value]) -> Value | None:
        """A value, None where the driver has none; raises GpuLost."""
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
    """Does nothing on a CPU, and where NVML cannot be used."""

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
        """The last one."""
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
            thread.shutdown(wait=False)  # the driver may not answer

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
