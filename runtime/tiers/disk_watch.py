"""Tells the registry what the node's other pods have done to the disk cache they share."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from runtime.threads import in_thread

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from runtime.registration.registry_agent import RegistryAgent
    from runtime.tiers.disk_cache import DiskCache

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0


async def watch_disk(cache: DiskCache, agent: RegistryAgent, threads: Executor) -> None:
    """Look at the cache again and again; until cancelled."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            changed = await in_thread(threads, cache.refresh)
        except OSError as error:  # the next look may see more
            logger.warning("disk cache not looked at", extra={"error": error})
            continue
        for key in changed:
            agent.report_tier(key)
