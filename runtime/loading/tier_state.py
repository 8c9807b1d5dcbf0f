"""The tier of each model at this pod, as reported to the registry."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from registry.domain.model import Tier
from runtime.metrics import TIER_BYTES
from runtime.registration.registry_agent import RegistryAgent, TierState
from runtime.threads import in_thread

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from runtime.loading.model_store import ModelStore
    from runtime.loading.processors import Processors
    from runtime.tiers.disk_cache import DiskCache
    from runtime.tiers.host_tier import HostTier

logger = logging.getLogger(__name__)

DISK_POLL_INTERVAL_S = 2.0


def tier_state(
    key: str, store: ModelStore, host: HostTier, cache: DiskCache, processors: Processors
) -> TierState:
    """The nearest tier of a model, and its bytes there."""
    if store.holds(key):
        return TierState(Tier.DEVICE, store.bytes_of(key))
    if host.bytes_of(key):
        return TierState(Tier.HOST, host.bytes_of(key))
    size_bytes = cache.bytes_on_disk(key)
    if size_bytes:
        return TierState(Tier.DISK, size_bytes)
    return TierState(Tier.REMOTE, cache.asset_bytes(key) if processors.has(key) else 0)


def used_bytes(
    store: ModelStore, host: HostTier, cache: DiskCache, agent: RegistryAgent
) -> dict[str, int]:
    """Bytes per tier for a heartbeat; also reports what other pods changed in the host tier."""
    for key in host.changes():
        agent.report_tier(key)
    used = {
        Tier.DEVICE.value: store.used_bytes,
        Tier.HOST.value: host.used_bytes(),
        Tier.DISK.value: cache.used_bytes(),
    }
    for tier, size_bytes in used.items():
        TIER_BYTES.labels(tier=tier).set(size_bytes)
    return used


async def watch_disk(cache: DiskCache, agent: RegistryAgent, threads: Executor) -> None:
    """Report what other pods change in the shared disk cache, until cancelled."""
    while True:
        await asyncio.sleep(DISK_POLL_INTERVAL_S)
        try:
            changed = await in_thread(threads, cache.refresh)
        except OSError as error:  # retried at the next interval
            logger.warning("disk cache not read", extra={"error": error})
            continue
        for key in changed:
            agent.report_tier(key)
