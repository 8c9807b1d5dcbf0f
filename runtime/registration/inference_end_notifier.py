"""Reports ended inference stages to the registry in the background, off the path of requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.registration.registry_agent import RegistryAgent

MAX_QUEUED = 10_000


class InferenceEndNotifier:
    """A queue of reservations whose inference stage has ended."""

    def __init__(self, agent: RegistryAgent) -> None:
        self._agent = agent
        self._ended: asyncio.Queue[str] = asyncio.Queue(MAX_QUEUED)

    def notify(self, reservation_id: str | None) -> None:
        """Queue a reservation; one that finds the queue full is left to expire."""
        if reservation_id is not None and not self._ended.full():
            self._ended.put_nowait(reservation_id)

    async def run(self) -> None:
        """Send until cancelled; everything queued goes out at once."""
        while True:
            batch = [await self._ended.get()]
            while not self._ended.empty():
                batch.append(self._ended.get_nowait())
            await asyncio.gather(*(self._agent.end_inference(each) for each in batch))
