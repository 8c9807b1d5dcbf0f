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
        self, resolver: WeightResolver, tasks: asyncio.TaskGroup, on_moved: Callable[[str], None]
    ) -> None:
        self._resolver = resolver
        self._on_moved = on_moved
        self._flights: SingleFlight[tuple[str, Tier], None] = SingleFlight(tasks)
        self._tickets: defaultdict[str, set[LoadTicket]] = defaultdict(set)

    async def bring(self, spec: ModelSpec, tier: Tier) -> None:
        """Have the weights in `tier` or nearer.

        Raises LoadFailed, LoadCancelled, and HostTierRefused where that tier does not take them.
        """
        await self._flights.run((spec.key, tier), lambda: self._fly(spec, tier))

    def prioritise(self, key: str) -> None:
        """A request waits for the model."""
        for ticket in self._tickets.get(key, ()):
            ticket.prioritise()

    def deprioritise(self, key: str) -> None:
        """None does any more."""
        for ticket in self._tickets.get(key, ()):
            ticket.deprioritise()

    def cancel(self, key: str, reason: str) -> None:
        """End what is under way for the model."""
        for ticket in tuple(self._tickets.get(key, ())):
            ticket.cancel(reason)

    async def wait_over(self, key: str) -> None:
        """Return once nothing is under way for the model."""
        for tier in (Tier.DISK, Tier.HOST):
            await self._flights.wait_over((key, tier))

    async def _fly(self, spec: ModelSpec, tier: Tier) -> None:
        ticket = LoadTicket(is_urgent=False)
        self._tickets[spec.key].add(ticket)
        try:
            await self._bring(spec, tier, ticket)
        finally:
            self._tickets[spec.key].discard(ticket)
            if not self._tickets[spec.key]:
                del self._tickets[spec.key]
            self._on_moved(spec.key)

    async def _bring(self, spec: ModelSpec, tier: Tier, ticket: LoadTicket) -> None:
        resolver, threads = self._resolver, self._resolver.threads.of(ticket)
        hold = await in_thread(resolver.threads, resolver.cache.lock_for_use, spec.key)
        try:
            await unless_cancelled(ticket, resolver.processors.folder(spec))
            if tier is Tier.HOST:
                self._check_host(spec)
            paths = await in_thread(threads, resolver.cache.fetch_weights, spec, ticket)
            await unless_cancelled(ticket, resolver.processors.get(spec))
            if tier is Tier.HOST:
                files = await in_thread(threads, resolver.cache.weight_files, spec)
                await self._copy_to_host(spec, files, paths, ticket)
        finally:
            hold.release()

    def _check_host(self, spec: ModelSpec) -> None:
        """Refuse before a download, where the tier is off."""
        if not self._resolver.host.is_on:
            raise _refused(spec, PutOutcome.OFF)

    async def _copy_to_host(
        self,
        spec: ModelSpec,
        files: Sequence[RemoteFile],
        paths: Sequence[Path],
        ticket: LoadTicket,
    ) -> None:
        threads = self._resolver.threads.of(ticket)
        while True:
            outcome = await in_thread(
                threads, self._resolver.host.put_files, spec.key, files, paths
            )
            if outcome is not PutOutcome.UNDER_WAY:
                break
            await asyncio.sleep(LOOK_EVERY_S)
        if outcome not in {PutOutcome.DONE, PutOutcome.THERE}:
            raise _refused(spec, outcome)


def _refused(spec: ModelSpec, outcome: PutOutcome) -> HostTierRefused:
    reason = REFUSALS[outcome].format(key=spec.key)
    return HostTierRefused(f"{spec.key} cannot be kept in tier host: {reason}")
