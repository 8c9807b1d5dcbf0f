"""Demotion: what leaves the device for want of room goes to tier `host`, in the background.

The device's memory is free at once: the bytes come from the files of tier `disk`, which are the
same. One model at a time is copied, so that inference keeps most of the memory's bandwidth.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from runtime.errors import RuntimePackageError
from runtime.metrics import DEMOTIONS
from runtime.threads import in_thread
from runtime.tiers.host_tier import HostTier, PutOutcome
from runtime.weights.weight_source import DiskWeights

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from registry.domain.model import ModelSpec
    from runtime.tiers.disk_cache import DiskCache

logger = logging.getLogger(__name__)

MOST_WAITING = 64
"""Evictions that outrun copying are dropped: the models are on disk."""


class Demotions:
    """A queue of models on their way to the host tier."""

    def __init__(
        self,
        host: HostTier,
        cache: DiskCache,
        threads: Executor,
        on_moved: Callable[[str], None],
    ) -> None:
        self._host = host
        self._cache = cache
        self._threads = threads
        self._on_moved = on_moved
        self._waiting: asyncio.Queue[ModelSpec] = asyncio.Queue(MOST_WAITING)

    def offer(self, spec: ModelSpec) -> None:
        """Copy the model soon; nobody waits for it."""
        if not self._host.is_on:
            return
        if self._waiting.full():
            DEMOTIONS.labels(outcome="queue-full").inc()
            return
        self._waiting.put_nowait(spec)

    async def run(self) -> None:
        """Copy until cancelled."""
        while True:
            spec = await self._waiting.get()
            try:
                outcome = await in_thread(self._threads, self._demote, spec)
            except RuntimePackageError as error:  # its files are gone, or were never whole
                logger.info("model not demoted", extra={"key": spec.key, "error": error})
                outcome = PutOutcome.FAILED
            DEMOTIONS.labels(outcome=outcome.value).inc()
            self._on_moved(spec.key)

    def _demote(self, spec: ModelSpec) -> PutOutcome:
        files = self._cache.weight_files(spec)
        folder = self._cache.folder_of(spec.key)
        source = DiskWeights([folder / file.path for file in files])
        try:
            return self._host.put(spec.key, files, source)
        finally:
            source.close()
