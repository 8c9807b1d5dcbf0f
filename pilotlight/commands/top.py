"""`top`: flags, the gateway's events that it follows, the screen, and the keyboard loop."""

import asyncio
import json
import os
import sys
import termios
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import httpx
import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pilotlight.commands import flags
from pilotlight.commands.target import KEY_HINT, PlatformTarget
from pilotlight.errors import InvalidInput, RequestFailed
from pilotlight.output import format_bytes

MAX_PODS: Final = 6
_STYLES: Final = {"device": "green", "loading": "magenta", "host": "blue", "disk": "yellow"}
_HELP: Final = "q quit  s order  / filter  up, down select  Enter details  space next page"
_KEYS: Final = {"\x1b[A": "k", "\x1b[B": "j", "\x1bOA": "k", "\x1bOB": "j"}
"""Arrow keys as letters."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which models the gateway sends."""

    offset: int = 0
    limit: int = 100
    search: str = ""
    by_rate: bool = True


@dataclass
class Screen:
    """The gateway's document as far as it was received, and what the keys have chosen."""

    totals: dict[str, Any] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    window: Window = Window()
    selected: int = 0
    shows_details: bool = False
    typed: str | None = None
    """The filter while it is typed; None: keys are commands."""
    problem: str = "connecting"
    end: asyncio.Event = field(default_factory=asyncio.Event)

    def merge(self, parts: Mapping[str, Any]) -> None:
        """Apply an event of the gateway: the parts of its document that have changed."""
        self.problem = ""
        for name in ("totals", "pods", "rows", "order"):
            if name in parts:
                setattr(self, name, parts[name])
        self.selected = max(0, min(self.selected, len(self.order) - 1))

    def press(self, keys: str) -> None:
        """Apply what was typed since the last call."""
        if keys in _KEYS:
            self._command(_KEYS[keys])
        elif keys == "\x1b":
            self.typed, self.shows_details = None, False
        else:
            for key in keys:
                if self.typed is None:
                    self._command(key)
                else:
                    self._type(key)

    def _type(self, key: str) -> None:
        assert self.typed is not None
        if key in "\r\n":
            self.window = replace(self.window, search=self.typed, offset=0)
            self.typed, self.selected = None, 0
        elif key in "\x7f\b":
            self.typed = self.typed[:-1]
        elif key.isprintable():
            self.typed += key

    def _command(self, key: str) -> None:
        window = self.window
        match key:
            case "q":
                self.end.set()
            case "s":
                self.window = replace(window, by_rate=not window.by_rate)
            case "/":
                self.typed = ""
            case "j":
                self.selected = min(self.selected + 1, max(len(self.order) - 1, 0))
            case "k":
                self.selected = max(self.selected - 1, 0)
            case " ":
                following = window.offset + window.limit
                is_last = following >= self.totals.get("models", 0)
                self.window = replace(window, offset=0 if is_last else following)
            case "\r" | "\n":
                self.shows_details = not self.shows_details


def render(screen: Screen, width: int, height: int) -> RenderableType:
    """The whole screen; fits 80 columns and 24 lines."""
    grid = Table.grid(expand=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_row(_headline(screen))
    if screen.shows_details and screen.order:
        grid.add_row(_details(screen))
    else:
        grid.add_row(_pod_table(screen))
        used = 6 + min(len(screen.pods), MAX_PODS)
        grid.add_row(_model_table(screen, max(height - used, 1)))
    grid.add_row(_footer(screen))
    return grid


def _headline(screen: Screen) -> Text:
    totals = screen.totals
    parts = [f"{totals.get('models', 0)} models", f"{totals.get('pods', 0)} pods"]
    parts += [f"{totals.get('rps', 0)} req/s"]
    if "queued" in totals:
        parts.append(f"waiting {totals['queued']}")
    last_minute = [
        f"{totals.get(key, 0)} {name}"
        for name, key in (("cold", "cold"), ("failed", "failed"), ("missed deadline", "missed"))
    ]
    last_minute += [
        f"{name} {totals[key]:.3g} ms"
        for name, key in (("p50", "p50_ms"), ("p99", "p99_ms"))
        if totals.get(key) is not None
    ]
    text = Text("pilotlight  " + "  ".join(parts), style="bold")
    text.append("\nlast minute  " + "  ".join(last_minute), style="not bold")
    if totals.get("age_s", 0) > 3:
        text.append(f"  copy {totals['age_s']} s old", style="red")
    return text


def _pod_table(screen: Screen) -> Table:
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0))
    for name in ("POD", "NODE", "PHASE", "SLOTS", "DEVICE"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for name in sorted(screen.pods)[:MAX_PODS]:
        pod = screen.pods[name]
        slots = f"{pod['busy']}/{pod['slots']}" if "slots" in pod else "-"
        memory = "-"
        if "memory_bytes" in pod:
            memory = f"{format_bytes(pod['device_bytes'])} of {format_bytes(pod['memory_bytes'])}"
        cells = (name, pod["node"], pod["phase"], slots, memory)
        table.add_row(*map(Text, cells))  # not strings, which could hold markup
    return table


def _model_table(screen: Screen, lines: int) -> Table:
    order = "REQ/S v" if screen.window.by_rate else "REQ/S"
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0))
    table.add_column("MODEL", no_wrap=True, overflow="ellipsis", ratio=2)
    table.add_column(order, no_wrap=True)
    table.add_column("WAITING", no_wrap=True)
    table.add_column("WHERE", no_wrap=True, overflow="ellipsis", ratio=3)
    begin = max(0, screen.selected - lines + 1)
    for index, name in enumerate(screen.order[begin : begin + lines], start=begin):
        row = screen.rows.get(name)
        if row is not None:
            style = "reverse" if index == screen.selected else ""
            cells = (Text(name), Text(str(row["rps"])), Text(str(row["queued"] or "-")))
            table.add_row(*cells, _where(row), style=style)
    return table


def _where(row: Mapping[str, Any]) -> Text:
    """Such as `device pod-0, pod-1; loading from disk pod-2`."""
    if row["failure"]:
        return Text(row["failure"], style="red")
    by_text: dict[str, list[str]] = {}
    for pod, where in sorted(row["cells"].items()):
        by_text.setdefault(where, []).append(pod)
    parts = [
        Text(f"{where} {', '.join(pods)}", style=_STYLES.get(where.split(" ")[0], ""))
        for where, pods in sorted(by_text.items(), key=lambda each: _rank(each[0]))
    ]
    return Text("; ").join(parts) if parts else Text("object storage")


def _rank(where: str) -> int:
    """The nearest tier first; words of a gateway that is newer than this command last."""
    known = list(_STYLES)
    tier = where.split(" ")[0]
    return known.index(tier) if tier in known else len(known)


def _details(screen: Screen) -> Table:
    name = screen.order[screen.selected]
    row = screen.rows[name]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_row("model", Text(name))
    table.add_row("requests", f"{row['rps']} per second, {row['queued']} waiting")
    table.add_row("ready", "yes" if row["ready"] else "no")
    if row["failure"]:
        table.add_row("failure", Text(row["failure"], style="red"))
    for pod, where in sorted(row["cells"].items()):
        table.add_row(Text(pod), where)
    table.add_row("more", Text(f"pilotlight describe model {name}"))
    return table


def _footer(screen: Screen) -> Text:
    if screen.problem:
        return Text(screen.problem, style="red")
    if screen.typed is not None:
        return Text(f"filter: {screen.typed}_  (Enter applies, Esc leaves)")
    searched = f"filter {screen.window.search!r}  " if screen.window.search else ""
    return Text(searched + _HELP, style="dim")


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
