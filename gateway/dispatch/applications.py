"""A pool's applications; nothing of `variants` is imported before one is declared."""

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from registry.domain.cluster import ClusterState

if TYPE_CHECKING:  # takes 0.1 s
    from variants.live import LiveApplications


class PoolApplications:
    def __init__(self, state: ClusterState, make: "Callable[[], LiveApplications]") -> None:
        """`make` them of the pool that has this state."""
        self._state = state
        self._make = make
        self._made: LiveApplications | None = None
        self._is_declared = asyncio.Event()

    def live(self) -> "LiveApplications":
        """Made at the first call."""
        if self._made is None:
            self._made = self._make()
            self._made.notify_change()
            self._is_declared.set()
        return self._made

    def notify_change(self) -> None:
        """Called after each change of the cluster state."""
        if self._made is not None:
            self._made.notify_change()
        elif self._state.applications:
            self._is_declared.set()

    async def run(self) -> None:
        """Begin once an application is declared, until cancelled."""
        await self._is_declared.wait()
        await asyncio.to_thread(import_module, "gateway.dispatch.application_request")
        await self.live().run()
