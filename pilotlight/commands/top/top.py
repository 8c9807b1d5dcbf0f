"""The flags of `top`, and its loop: the gateway's events and the keyboard change what is shown."""

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.live import Live

from pilotlight.commands import flags
from pilotlight.commands.target import PlatformTarget
from pilotlight.commands.top.events import OverviewEvents
from pilotlight.commands.top.screen import Screen, render
from pilotlight.errors import InvalidInput

app = typer.Typer()


@app.command()
def top(
    *,
    namespace: flags.Namespace = None,
    key: Annotated[
        str,
        flags.setting(
            "KEY", "API key or token of the namespace, or of the operator where none is given.",
            "--key", show_default=False,
        ),
    ] = "",
    home: flags.Home = None,
    gateway: flags.Gateway = None,
) -> None:  # fmt: skip
    """Show pods, models and requests as they change; q ends it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput(["top needs a terminal; for scripts: `pilotlight get models -o json`"])
    target = PlatformTarget.of(home, gateway=gateway)
    credentials = httpx.BasicAuth(namespace or "", key) if key else None
    asyncio.run(_show(OverviewEvents(target.gateway_url, credentials)))


async def _show(events: OverviewEvents) -> None:
    screen, changed = Screen(), asyncio.Event()
    console = Console()
    loop = asyncio.get_running_loop()

    def on_keys() -> None:
        typed = os.read(sys.stdin.fileno(), 64)
        if not typed:  # the terminal is gone
            screen.end.set()
        screen.press(typed.decode("utf-8", "replace"))
        changed.set()

    with (
        _raw_keyboard(),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        loop.add_reader(sys.stdin.fileno(), on_keys)
        following = asyncio.create_task(events.follow(screen, changed))
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
