"""Reads the sensors of the pod's GPU, for metrics and heartbeats; tells when the GPU is lost."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from runtime.device.gpu_sensors import GpuLost, GpuSensors, open_sensors
from runtime.metrics import GPU_BUSY, GPU_TEMPERATURE, GPU_USED_BYTES, GPU_XID
from runtime.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from registry.domain.accelerator import Accelerator, GpuReading


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
