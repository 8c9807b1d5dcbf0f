"""`top`: its flags, the events of the gateway, which it follows, and its loop with the keyboard."""

import asyncio
import json
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx
import typer
from rich.console import Console
from rich.live import Live

from pilotlight.commands import flags
from pilotlight.commands.target import KEY_HINT, PlatformTarget
from pilotlight.commands.top_screen import Screen, Window, render
from pilotlight.errors import InvalidInput, RequestFailed

app = typer.Typer()


@app.command()
def top(
    *,
    namespace: flags.Namespace = None,
    home: flags.Home = None,
    gateway: flags.Gateway = None,
    key: flags.Key = "",
) -> None:
    """Show pods, models and requests as they change; q ends it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput(["top needs a terminal; for scripts: `pilotlight get models -o json`"])
    target = PlatformTarget.of(home, gateway=gateway)
    credentials = httpx.BasicAuth(namespace or "", key) if key else None
    asyncio.run(_show(f"{target.gateway_url}/console/events", credentials))


async def _show(url: str, credentials: httpx.BasicAuth | None) -> None:
    screen, changed = Screen(), asyncio.Event()
    console = Console()
    loop = asyncio.get_running_loop()

    def on_keys() -> None:
        typed = os.read(sys.stdin.fileno(), 64)
        if not typed:  # the terminal is gone
            screen.end.set()
        screen.press(typed.decode("utf-8", "replace"))
        changed.set()

    with _raw_keyboard(), Live(console=console, screen=True, auto_refresh=False) as live:
        loop.add_reader(sys.stdin.fileno(), on_keys)
        following = asyncio.create_task(_follow(url, credentials, screen, changed))
        ending = asyncio.create_task(screen.end.wait())
        try:
            while not ending.done():
                live.update(render(screen, console.width, console.height), refresh=True)
                changed.clear()
                waiting = asyncio.create_task(changed.wait())
                await asyncio.wait(
                    {waiting, ending, following}, return_when=asyncio.FIRST_COMPLETED
                )
                waiting.cancel()
                if following.done():
                    following.result()  # raises RequestFailed
        finally:
            loop.remove_reader(sys.stdin.fileno())
            following.cancel()
            ending.cancel()


@contextmanager
def _raw_keyboard() -> Iterator[None]:
    """Keys arrive at once and are not echoed; Ctrl-C still interrupts."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


_RETRY_S: Final = 1.0
_SILENCE_S: Final = 10.0
"""A gateway sends something every quarter of a second."""


async def _follow(
    url: str, credentials: httpx.BasicAuth | None, screen: Screen, changed: asyncio.Event
) -> None:
    """Keep the screen up to date until cancelled. Raises RequestFailed if it is refused."""
    async with httpx.AsyncClient(trust_env=False, timeout=_SILENCE_S, auth=credentials) as client:
        while True:
            try:
                await _read(client, url, screen, changed)
            except httpx.InvalidURL as error:
                raise RequestFailed(f"{url} is no address: {error}") from error
            except httpx.HTTPError as error:
                screen.problem = f"no answer from the gateway: {error or type(error).__name__}"
                changed.set()
                await asyncio.sleep(_RETRY_S)


async def _read(
    client: httpx.AsyncClient, url: str, screen: Screen, changed: asyncio.Event
) -> None:
    """One connection: until it ends, or the screen shows another window."""
    window = screen.window
    async with client.stream("GET", url, params=_query(window)) as response:
        if response.status_code >= 500:
            raise httpx.HTTPError(f"HTTP {response.status_code}")
        if response.status_code != 200:
            text = (await response.aread()).decode(errors="replace")[:300]
            hint = f"; {KEY_HINT}" if response.status_code == httpx.codes.UNAUTHORIZED else ""
            raise RequestFailed(f"{url}: HTTP {response.status_code}: {text}{hint}")
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
