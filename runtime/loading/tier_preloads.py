"""Preloads that stop short of the device: weights brought to tier `disk` or `host`, tokenizers too.

The registry gives no claims for these: the node's disk cache sees to it that one pod downloads. A
load that needs the same bytes waits for them there and makes the preload urgent.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from registry.domain.model import Tier
from runtime.errors import HostTierRefused
from runtime.loading.single_flight import SingleFlight
from runtime.storage.load_ticket import LoadTicket, unless_cancelled
from runtime.threads import in_thread
from runtime.tiers.host_tier import PutOutcome
from runtime.weights.weight_source import DiskWeights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from registry.domain.model import ModelSpec
    from runtime.loading.weight_resolver import WeightResolver
    from runtime.storage.listing import RemoteFile

LOOK_EVERY_S = 0.05
"""While another pod of the node copies the same model to the host tier."""

REFUSALS = {
    PutOutcome.NO_ROOM: "its budget has no room for {key}, even without what nobody uses",
    PutOutcome.OFF: "it is off at this pod: give it a budget (--host-bytes) and a folder",
    PutOutcome.FAILED: "{key} could not be copied; the pod's log says why",
    PutOutcome.STOPPED: "the pod shuts down",
}


class TierPreloads:
    """All of a pod. Owned by the event loop."""

    def __init__(
        self, finder: WeightResolver, tasks: asyncio.TaskGroup, on_moved: Callable[[str], None]
    ) -> None:
        self._finder = finder
        self._on_moved = on_moved
        self._flights: SingleFlight[tuple[str, Tier], None] = SingleFlight(tasks)
        self._wishes: defaultdict[str, set[LoadTicket]] = defaultdict(set)

    async def bring(self, spec: ModelSpec, tier: Tier) -> None:
        """Have the weights in `tier` or nearer.

        Raises LoadFailed, LoadCancelled, and HostTierRefused where that tier does not take them.
        """
        await self._flights.run((spec.key, tier), lambda: self._fly(spec, tier))

    def hasten(self, key: str) -> None:
        """A request waits for the model."""
        for wish in self._wishes.get(key, ()):
            wish.hasten()

    def relax(self, key: str) -> None:
        """None does any more."""
        for wish in self._wishes.get(key, ()):
            wish.relax()

    def withdraw(self, key: str, reason: str) -> None:
        """End what is under way for the model."""
        for wish in tuple(self._wishes.get(key, ())):
            wish.withdraw(reason)

    async def wait_over(self, key: str) -> None:
        """Return once nothing is under way for the model."""
        for tier in (Tier.DISK, Tier.HOST):
            await self._flights.wait_over((key, tier))

    async def _fly(self, spec: ModelSpec, tier: Tier) -> None:
        wish = LoadTicket(is_urgent=False)
        self._wishes[spec.key].add(wish)
        try:
            await self._bring(spec, tier, wish)
        finally:
            self._wishes[spec.key].discard(wish)
            if not self._wishes[spec.key]:
                del self._wishes[spec.key]
            self._on_moved(spec.key)

    async def _bring(self, spec: ModelSpec, tier: Tier, wish: LoadTicket) -> None:
        finder, threads = self._finder, self._finder.threads.of(wish)
        hold = await in_thread(finder.threads, finder.cache.hold, spec.key)
        try:
            await unless_cancelled(wish, finder.frontends.folder(spec))
            if tier is Tier.HOST:
                self._check_host(spec)
            paths = await in_thread(threads, finder.cache.fetch_weights, spec, wish)
            await unless_cancelled(wish, finder.frontends.get(spec))
            if tier is Tier.HOST:
                files = await in_thread(threads, finder.cache.weight_files, spec)
                await self._copy_to_host(spec, files, paths, wish)
        finally:
            hold.release()

    def _check_host(self, spec: ModelSpec) -> None:
        """Refuse before a download, where the tier is off."""
        if not self._finder.host.is_on:
            raise _refused(spec, PutOutcome.OFF)

    async def _copy_to_host(
        self, spec: ModelSpec, files: Sequence[RemoteFile], paths: Sequence[Path], wish: LoadTicket
    ) -> None:
        threads = self._finder.threads.of(wish)
        while True:
            outcome = await in_thread(threads, self._put, spec, files, paths)
            if outcome is not PutOutcome.UNDER_WAY:
                break
            await asyncio.sleep(LOOK_EVERY_S)
        if outcome not in {PutOutcome.DONE, PutOutcome.THERE}:
            raise _refused(spec, outcome)

    def _put(
        self, spec: ModelSpec, files: Sequence[RemoteFile], paths: Sequence[Path]
    ) -> PutOutcome:
        source = DiskWeights(paths)
        try:
            return self._finder.host.put(spec.key, files, source)
        finally:
            source.close()


def _refused(spec: ModelSpec, outcome: PutOutcome) -> HostTierRefused:
    reason = REFUSALS[outcome].format(key=spec.key)
    return HostTierRefused(f"{spec.key} cannot be kept in tier host: {reason}")
