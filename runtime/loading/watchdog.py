"""Actions when an inference hangs or the device fails: the model is removed, or the pod ends.

A stuck thread keeps its model's memory and, on a CPU, perhaps a core, while other threads continue.
The worker interrupts it, which ends most; a model may have `MAX_STUCK_PER_MODEL` others, so that it
alone cannot end the pod of all tenants. On a GPU a kernel that does not end blocks all later ones,
so the first thread that stays stuck ends the pod, which drains first. A GPU that failed
permanently, as after an illegal address, works only in a new process. The pod's supervisor restarts
the pod.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from runtime.device.worker import DeviceWorker
from runtime.loading.load_coordinator import LoadCoordinator
from runtime.pod_process import write_termination_message

logger = logging.getLogger(__name__)

MAX_STUCK_THREADS = 2
"""Hung inferences at once above which a CPU pod drains and ends: each holds a core for good."""
INTERRUPT_S = 1.0
"""Time for interrupted threads to end."""
MAX_STUCK_PER_MODEL = 1
"""Threads that stay stuck until their model is removed, even if it serves other requests."""


class Watchdog:
    """Receives hung inferences from the device's threads and handles them on the event loop."""

    def __init__(
        self,
        device: DeviceWorker,
        coordinator: LoadCoordinator,
        *,
        max_stuck_threads: int,
        end_pod: Callable[[], None],
    ) -> None:
        self._device = device
        self._coordinator = coordinator
        self._max_stuck_threads = max_stuck_threads
        self._end_pod = end_pod
        self._hung: asyncio.Queue[tuple[str, str, bool]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        device.on_hung = self._on_hung
        device.on_lost = self._on_lost

    # In the device's threads

    def _on_hung(self, key: str, reason: str, is_broken: bool) -> None:
        self._loop.call_soon_threadsafe(self._hung.put_nowait, (key, reason, is_broken))

    def _on_lost(self, reason: str) -> None:
        logger.error("device lost, ending the pod", extra={"reason": reason})
        write_termination_message(reason)
        with suppress(RuntimeError):  # the loop is closed, since the pod has ended
            self._loop.call_soon_threadsafe(self._end_pod)

    # On the event loop

    async def run(self) -> None:
        """Remove hung models until cancelled."""
        while True:
            key, reason, is_broken = await self._hung.get()
            if is_broken:
                await self._coordinator.mark_broken(key, reason)
            await asyncio.sleep(INTERRUPT_S)
            if not is_broken and self._device.stuck_threads_of(key) > MAX_STUCK_PER_MODEL:
                self._device.mark_broken(key, reason)
                await self._coordinator.mark_broken(key, reason)
            stuck = self._device.stuck_threads
            if stuck > self._max_stuck_threads:
                logger.error(
                    "too many hung inferences, ending the pod",
                    extra={"threads": stuck, "allowed": self._max_stuck_threads},
                )
                self._end_pod()
