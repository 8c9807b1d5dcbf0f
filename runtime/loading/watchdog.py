"""What follows when an inference does not end, or the device fails: a model's end, or the pod's.

A thread cannot be killed in Python. One that is stuck keeps its model's memory and, on a CPU,
perhaps a core; the others go on beside it. On a GPU a kernel that does not end blocks whatever
comes after it, so there the first one ends the pod. A GPU that failed for good, as after an illegal
address, is of use to no one but a new process. Whoever supervises the pod starts it again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.device.worker import DeviceWorker
    from runtime.loading.load_coordinator import LoadCoordinator

logger = logging.getLogger(__name__)


class Watchdog:
    """Hears of hung inferences from the device's threads and acts on the event loop."""

    def __init__(
        self,
        device: DeviceWorker,
        coordinator: LoadCoordinator,
        *,
        most_stuck: int,
        end_pod: Callable[[], None],
    ) -> None:
        self._device = device
        self._coordinator = coordinator
        self._most_stuck = most_stuck
        self._end_pod = end_pod
        self._heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        device.on_hung = lambda key, reason: _tell(loop, self._heard, (key, reason))
        device.on_lost = lambda reason: _end(loop, end_pod, reason)

    async def run(self) -> None:
        """Give up hung models until cancelled."""
        while True:
            key, reason = await self._heard.get()
            stuck = self._device.stuck_threads  # some end once their weights are taken from them
            await self._coordinator.mark_broken(key, reason)
            if stuck > self._most_stuck:
                logger.error(
                    "too many inferences hang, the pod ends",
                    extra={"threads": stuck, "allowed": self._most_stuck},
                )
                self._end_pod()


def _tell(
    loop: asyncio.AbstractEventLoop, heard: asyncio.Queue[tuple[str, str]], news: tuple[str, str]
) -> None:
    loop.call_soon_threadsafe(heard.put_nowait, news)


def _end(loop: asyncio.AbstractEventLoop, end_pod: Callable[[], None], reason: str) -> None:
    logger.error("the pod ends", extra={"reason": reason})
    with suppress(RuntimeError):  # the loop is closed: the pod has ended
        loop.call_soon_threadsafe(end_pod)
