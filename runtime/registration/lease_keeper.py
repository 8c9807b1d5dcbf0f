"""Keeps the pod's lease while its event loop is blocked, from a thread of its own.

A lease that is lost in passing costs the pod's queued requests and the registration of all its
models. A loop that stays blocked loses it after `MAX_BLOCKED_S`, so that requests go elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import dataclass, replace

from registry.domain.pod import PodReport
from registry.errors import LeaseLost, RegistryUnavailable
from registry.redis.client import Registry

logger = logging.getLogger(__name__)

MAX_BLOCKED_S = 30.0


@dataclass(frozen=True, slots=True)
class SentHeartbeat:
    epoch: int
    report: PodReport
    sent_s: float
    """On the clock of `time.monotonic`."""


class LeaseKeeper:
    """Repeats the event loop's last heartbeat when the next one is late."""

    def __init__(
        self, registry: Registry, pod: str, *, heartbeat_s: float, lease_ttl_s: float
    ) -> None:
        self._url, self._pool = registry.url, registry.pool
        self._pod = pod
        self._heartbeat_s = heartbeat_s
        self._lease_ttl_s = lease_ttl_s
        self._last: SentHeartbeat | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def sent(self, epoch: int, report: PodReport) -> None:
        """The event loop has sent this heartbeat; its samples are not repeated."""
        self._last = SentHeartbeat(epoch, replace(report, samples=()), time.monotonic())

    def forget(self) -> None:
        """Keep no lease until the next heartbeat: it was lost, or the pod leaves."""
        self._last = None

    def _watch(self) -> None:
        while not self._closed.wait(self._heartbeat_s):
            last = self._last
            if last is None:
                continue
            late_s = time.monotonic() - last.sent_s
            if 1.5 * self._heartbeat_s < late_s < MAX_BLOCKED_S:
                self._repeat(last)

    def _repeat(self, last: SentHeartbeat) -> None:
        try:
            asyncio.run(self._send(last))
        except (LeaseLost, RegistryUnavailable) as error:
            logger.info("lease not kept", extra={"error": error})
        else:
            logger.warning("event loop is late, lease kept")

    async def _send(self, last: SentHeartbeat) -> None:
        registry = Registry(self._url, self._pool)  # of this thread
        try:
            await registry.heartbeat(
                self._pod, last.epoch, last.report, lease_ttl_s=self._lease_ttl_s
            )
        finally:
            await registry.close()
