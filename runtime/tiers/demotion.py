"""Demotion: models evicted from the device for memory are copied to tier `host` in the background.

The device's memory is free at once, since the copy reads the same bytes from the files of tier
`disk`. One model is copied at a time, which leaves most of the memory bandwidth to inference.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runtime.errors import RuntimePackageError
from runtime.metrics import DEMOTIONS
from runtime.storage.load_ticket import LoadTicket
from runtime.threads import in_thread
from runtime.tiers.host_tier import HostTier, PutOutcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from registry.domain.model import ModelSpec
    from runtime.tiers.disk_cache import DiskCache

logger = logging.getLogger(__name__)

MAX_QUEUED = 64
"""While the queue is full, evicted models are not copied; their files stay on disk."""


@dataclass(eq=False, slots=True)
class Demotions:
    """A queue of models to copy to the host tier."""

    host: HostTier
    cache: DiskCache
    threads: Executor
    on_moved: Callable[[str], None]
    _queue: asyncio.Queue[ModelSpec] = field(default_factory=lambda: asyncio.Queue(MAX_QUEUED))
    _tickets: dict[str, LoadTicket] = field(default_factory=dict)
    """Of the queued models and the one that is copied, by key."""

    def offer(self, spec: ModelSpec) -> None:
        """Queue a model, if the host tier is on and the queue not full."""
        if not self.host.is_on:
            return
        if self._queue.full():
            DEMOTIONS.labels(outcome="queue-full").inc()
            return
        self._tickets.setdefault(spec.key, LoadTicket(is_urgent=False))
        self._queue.put_nowait(spec)

    def withdraw(self, key: str) -> None:
        """Copy no further byte of a model, which is deleted."""
        if (ticket := self._tickets.get(key)) is not None:
            ticket.cancel("the model is deleted")

    async def run(self) -> None:
        while True:
            spec = await self._queue.get()
            ticket = self._tickets.get(spec.key) or LoadTicket(is_urgent=False)
            try:
                outcome = await in_thread(self.threads, self._copy, spec, ticket)
            except RuntimePackageError as error:  # its files were deleted or never complete
                logger.info("model not demoted", extra={"key": spec.key, "error": error})
                outcome = PutOutcome.FAILED
            finally:
                self._tickets.pop(spec.key, None)
            DEMOTIONS.labels(outcome=outcome.value).inc()
            self.on_moved(spec.key)

    def _copy(self, spec: ModelSpec, ticket: LoadTicket) -> PutOutcome:
        if ticket.is_cancelled:
            return PutOutcome.STOPPED
        files = self.cache.weight_files(spec)
        folder = self.cache.folder_of(spec.key)
        paths = [folder / file.path for file in files]
        return self.host.put_files(spec.key, files, paths, lambda: ticket.is_cancelled)
