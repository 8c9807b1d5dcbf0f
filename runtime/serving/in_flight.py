"""The requests that are being answered, so that all of them can be given up at once."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from runtime.errors import PodEnded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class InFlightRequests:
    """All requests of a pod that are under way."""

    def __init__(self, pod_name: str) -> None:
        self._pod_name = pod_name
        self._lives: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A request's time under way; raises PodEnded where it was given up."""
        life = asyncio.timeout(None)
        self._lives.add(life)
        try:
            async with life:
                yield
        except TimeoutError as error:
            if life.expired():
                raise PodEnded(f"pod {self._pod_name} ended before the request") from error
            raise
        finally:
            self._lives.discard(life)

    def end_all(self) -> None:
        """Give up every request: the pod must end."""
        now_s = asyncio.get_running_loop().time()
        for life in self._lives:
            life.reschedule(now_s)
