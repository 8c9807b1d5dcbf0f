"""The place of the plan that a pod of a cluster has: taken before CUDA starts, then watched.

Pods of a pool are equal until they take a place: model, share and slots follow from it. A share can
be set only before CUDA starts, so that a pod drains and starts anew for another place.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from registry.domain.pod import PodInfo, placed_slots
from registry.domain.records import PlacedPod
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from runtime.settings import RuntimeSettings

logger = logging.getLogger(__name__)

GPU: Final = "gpu"
"""Value of the setting `takes-places`: the first GPU of the environment."""
RETRY_INTERVAL_S: Final = 1.0
"""Between attempts to take a place that another pod holds and may not use."""
_SMI_TIMEOUT_S: Final = 20.0


def with_place(settings: RuntimeSettings) -> RuntimeSettings:
    """The settings with an open place of the plan, if there is one. Starts no CUDA and no thread.

    Without the registry the pod starts without a place, and takes one later.
    """
    if not settings.takes_places:
        return settings
    accelerator = _accelerator(settings.takes_places)
    settings = replace(settings, takes_places=accelerator, share=settings.max_share)
    place = asyncio.run(_take(settings)) if accelerator else None
    if place is None:
        return settings
    replica = place.replica
    shares = [each for each in (replica.share_pct, settings.max_share) if each]
    return replace(
        settings,
        place=place.name,
        placed_model=replica.model,
        share=min(shares, default=0.0),
        slots=placed_slots(settings.slots, replica.batch_size),
    )


async def _take(settings: RuntimeSettings) -> PlacedPod | None:
    try:
        registry = await Registry.connect(settings.redis_url, settings.pool)
    except RegistryUnavailable:
        return None
    try:
        return await registry.take_place(settings.name, settings.takes_places)
    except RegistryUnavailable:
        return None
    finally:
        await registry.close()


def _accelerator(name: str) -> str:
    """The name that plans have for the pod's accelerator; empty if its GPU is not found."""
    if name != GPU:
        return name
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
    if first.startswith(("GPU-", "MIG-")):
        return first
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True
        )
        return found.stdout.split()[int(first) if first.isdigit() else 0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        logger.warning("no GPU found, so the pod takes no places: %s", error)
        return ""


class PlaceWatch:
    """Ends the pod for a new start once its place is gone, or once it has taken another."""

    def __init__(self, watch: ClusterWatch, info: PodInfo, restart: Callable[[], None]) -> None:
        self._watch = watch
        self._info = info
        self._restart = restart
        self._changed = asyncio.Event()
        watch.subscribe(self._changed.set)

    async def run(self) -> None:
        if not self._info.takes_places:
            return
        await self._watch.wait_synced()
        while True:
            self._changed.clear()
            if self._has_lost_place() or (self._may_take() and await self._has_taken_another()):
                logger.info("starting anew for another place", extra={"place": self._info.place})
                self._restart()
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_INTERVAL_S if self._may_take() else None):
                    await self._changed.wait()

    def _has_lost_place(self) -> bool:
        """Whether the plan lists the pod's place no more, or with another model."""
        info, record = self._info, self._watch.state.placement
        if not info.place or record is None:
            return False
        place = record.pod(info.place)
        return place is None or place.replica.model != info.placed_model

    def _may_take(self) -> bool:
        """Whether a place here is open, or another pod is registered with this pod's place."""
        info, record = self._info, self._watch.state.placement
        others = {
            pod.info.place for name, pod in self._watch.state.pods.items() if name != info.name
        }
        if info.place:
            return info.place in others
        return record is not None and any(
            pod.replica.accelerator == info.takes_places and pod.name not in others
            for pod in record.pods
        )

    async def _has_taken_another(self) -> bool:
        try:
            place = await self._watch.registry.take_place(self._info.name, self._info.takes_places)
        except RegistryUnavailable:
            return False
        return (place.name if place else "") != self._info.place
