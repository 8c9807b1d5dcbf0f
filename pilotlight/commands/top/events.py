"""Follows the overview of a gateway by its server-sent events; connects again when they end."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

import httpx

from pilotlight.errors import RequestFailed

if TYPE_CHECKING:
    from pilotlight.commands.top.screen import Screen, Window

_RETRY_S: Final = 1.0
_SILENCE_S: Final = 10.0
"""A gateway sends something every quarter of a second."""


class OverviewEvents:
    def __init__(self, gateway_url: str, credentials: httpx.BasicAuth | None) -> None:
        self._url = f"{gateway_url}/console/events"
        self._credentials = credentials

    async def follow(self, screen: Screen, changed: asyncio.Event) -> None:
        """Keep the screen up to date until cancelled. Raises RequestFailed if it is refused."""
        timeout = httpx.Timeout(_SILENCE_S)
        async with httpx.AsyncClient(
            trust_env=False, timeout=timeout, auth=self._credentials
        ) as client:
            while True:
                try:
                    await self._read(client, screen, changed)
                except httpx.InvalidURL as error:
                    raise RequestFailed(f"{self._url} is no address: {error}") from error
                except httpx.HTTPError as error:
                    screen.problem = f"no answer from the gateway: {error or type(error).__name__}"
                    changed.set()
                    await asyncio.sleep(_RETRY_S)

    async def _read(
        self, client: httpx.AsyncClient, screen: Screen, changed: asyncio.Event
    ) -> None:
        """One connection: until it ends, or the screen shows another window."""
        window = screen.window
        async with client.stream("GET", self._url, params=_query(window)) as response:
            if response.status_code >= 500:
                raise httpx.HTTPError(f"HTTP {response.status_code}")
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")[:300]
                raise RequestFailed(f"{self._url}: HTTP {response.status_code}: {text}")
            screen.forget()
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    screen.merge(json.loads(line.removeprefix("data: ")))
                    changed.set()
                if screen.window != window:
                    return


def _query(window: Window) -> dict[str, str | int]:
    return {
        "offset": window.offset,
        "limit": window.limit,
        "search": window.search,
        "sort": "rate" if window.by_rate else "name",
    }
