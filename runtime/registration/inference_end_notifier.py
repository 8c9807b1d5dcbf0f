"""Telling the registry that inference stages ended, without any request waiting for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.registration.registry_agent import RegistryAgent

MOST_WAITING = 10_000


class InferenceEndNotifier:
    """A queue of reservations whose place in the inference stage is free again."""

    def __init__(self, agent: RegistryAgent) -> None:
        self._agent = agent
        self._ended: asyncio.Queue[str] = asyncio.Queue(MOST_WAITING)

    def notify(self, reservation_id: str | None) -> None:
        """Free the place soon; one that finds the queue full expires by itself."""
        if reservation_id is not None and not self._ended.full():
            self._ended.put_nowait(reservation_id)

    async def run(self) -> None:
        """Send until cancelled; what ended together goes out together."""
        while True:
            batch = [await self._ended.get()]
            while not self._ended.empty():
                batch.append(self._ended.get_nowait())
            await asyncio.gather(*(self._agent.end_inference(each) for each in batch))
