"""Preloads of models to tier `disk` or `host`, with their processors.

They need no claim of the registry: the locks of the node's disk cache let one pod download. A load
to the device that needs the same bytes waits for those locks, and makes the preload urgent.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from registry.domain.model import ModelSpec, Tier
from runtime.errors import HostTierRefused
from runtime.loading.load_threads import SingleFlight, unless_cancelled
from runtime.storage.load_ticket import LoadTicket
from runtime.threads import in_thread
from runtime.tiers.host_tier import PutOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.loading.weight_resolver import WeightResolver

POLL_INTERVAL_S = 0.05
"""Used while another pod of the node copies the same model to the host tier."""

REFUSALS = {
    PutOutcome.NO_ROOM: "{key} does not fit into its budget beside the models in use",
    PutOutcome.OFF: "it is off at this pod: configure its budget (--host-bytes) and folder",
    PutOutcome.FAILED: "{key} could not be copied; the pod's log says why",
    PutOutcome.STOPPED: "the pod shuts down",
}


class TierPreloads:
    """All preloads of a pod to these tiers. Owned by the event loop."""

    def __init__(
        self, resolver: WeightResolver, tasks: asyncio.TaskGroup, on_moved: Callable[[str], None]
    ) -> None:
        self._resolver = resolver
        self._on_moved = on_moved
        self._running: SingleFlight[tuple[str, Tier], None] = SingleFlight(tasks)
        self._tickets: defaultdict[str, set[LoadTicket]] = defaultdict(set)

    async def preload(self, spec: ModelSpec, tier: Tier) -> None:
        """Copy the weights to `tier`, unless they are there.

        Raises LoadFailed, LoadCancelled, and HostTierRefused if the host tier cannot take them.
        """
        await self._running.run((spec.key, tier), lambda: self._run(spec, tier))

    def prioritise(self, key: str) -> None:
        """Make preloads of the model urgent, since a request waits for it."""
        for ticket in self._tickets.get(key, ()):
            ticket.prioritise()

    def deprioritise(self, key: str) -> None:
        for ticket in self._tickets.get(key, ()):
            ticket.deprioritise()

    def cancel(self, key: str, reason: str) -> None:
        for ticket in tuple(self._tickets.get(key, ())):
            ticket.cancel(reason)

    async def wait_ended(self, key: str) -> None:
        """Return once no preload of the model runs."""
        for tier in (Tier.DISK, Tier.HOST):
            await self._running.wait_ended((key, tier))

    async def _run(self, spec: ModelSpec, tier: Tier) -> None:
        ticket = LoadTicket(is_urgent=False)
        self._tickets[spec.key].add(ticket)
        try:
            await self._preload(spec, tier, ticket)
        finally:
            self._tickets[spec.key].discard(ticket)
            if not self._tickets[spec.key]:
                del self._tickets[spec.key]
            self._on_moved(spec.key)

    async def _preload(self, spec: ModelSpec, tier: Tier, ticket: LoadTicket) -> None:
        resolver, threads = self._resolver, self._resolver.threads.executor_for(ticket)
        with await in_thread(resolver.threads, resolver.cache.lock_for_use, spec.key):
            await unless_cancelled(ticket, resolver.processors.folder(spec))
            if tier is Tier.HOST and not resolver.host.is_on:
                raise _refused(spec, PutOutcome.OFF)  # before a download
            paths = await in_thread(threads, resolver.cache.fetch_weights, spec, ticket)
            await unless_cancelled(ticket, resolver.processors.get(spec))
            if tier is Tier.HOST:
                files = await in_thread(threads, resolver.cache.weight_files, spec)
                while True:
                    outcome = await in_thread(
                        threads, resolver.host.put_files, spec.key, files, paths
                    )
                    if outcome is not PutOutcome.UNDER_WAY:
                        break
                    await asyncio.sleep(POLL_INTERVAL_S)
                if outcome not in {PutOutcome.DONE, PutOutcome.THERE}:
                    raise _refused(spec, outcome)


def _refused(spec: ModelSpec, outcome: PutOutcome) -> HostTierRefused:
    reason = REFUSALS[outcome].format(key=spec.key)
    return HostTierRefused(f"{spec.key} cannot be copied to tier host: {reason}")
