"""`top`: pods, and the models with most requests, as a gateway's events tell them."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

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


@dataclass
class Screen:
    """The gateway's document as far as it was received."""

    totals: dict[str, Any] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    problem: str = "connecting"

    def merge(self, parts: Mapping[str, Any]) -> None:
        """Apply an event of the gateway: the parts of its document that have changed."""
        self.problem = ""
        for name in ("totals", "pods", "rows", "order"):
            if name in parts:
                setattr(self, name, parts[name])


def render(screen: Screen, height: int) -> RenderableType:
    """The whole screen; fits 80 columns and 24 lines."""
    grid = Table.grid(expand=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_row(_headline(screen))
    grid.add_row(_pod_table(screen))
    used = 5 + min(len(screen.pods), MAX_PODS)
    grid.add_row(_model_table(screen, max(height - used, 1)))
    if screen.problem:
        grid.add_row(Text(screen.problem, style="red"))
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
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0))
    table.add_column("MODEL", no_wrap=True, overflow="ellipsis", ratio=2)
    table.add_column("REQ/S", no_wrap=True)
    table.add_column("WAITING", no_wrap=True)
    table.add_column("WHERE", no_wrap=True, overflow="ellipsis", ratio=3)
    for name in screen.order[:lines]:
        row = screen.rows.get(name)
        if row is not None:
            cells = (Text(name), Text(str(row["rps"])), Text(str(row["queued"] or "-")))
            table.add_row(*cells, _where(row))
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


app = typer.Typer()


@app.command()
def top(
    *,
    search: Annotated[str, typer.Option(help="Show only models whose names hold this.")] = "",
    namespace: flags.Namespace = None,
    home: flags.Home = None,
    gateway: flags.Gateway = None,
    key: flags.Key = "",
) -> None:
    """Show pods, and the models with most requests, as they change, until Ctrl-C."""
    if not sys.stdout.isatty():
        raise InvalidInput(["top needs a terminal; for scripts: `pilotlight get models -o json`"])
    target = PlatformTarget.of(home, gateway=gateway)
    credentials = httpx.BasicAuth(namespace or "", key) if key else None
    asyncio.run(_show(f"{target.gateway_url}/console/events", credentials, search))


_RETRY_S: Final = 1.0
_SILENCE_S: Final = 10.0
"""A gateway sends something every quarter of a second."""


async def _show(url: str, credentials: httpx.BasicAuth | None, search: str) -> None:
    """Keep the screen up to date until cancelled. Raises RequestFailed if it is refused."""
    screen, console = Screen(), Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show() -> None:
            live.update(render(screen, console.height), refresh=True)

        async with httpx.AsyncClient(
            trust_env=False, timeout=_SILENCE_S, auth=credentials
        ) as client:
            while True:
                show()
                try:
                    async for parts in _events(client, url, search):
                        screen.merge(parts)
                        show()
                except httpx.InvalidURL as error:
                    raise RequestFailed(f"{url} is no address: {error}") from error
                except httpx.HTTPError as error:
                    screen.problem = f"no answer from the gateway: {error or type(error).__name__}"
                    show()
                    await asyncio.sleep(_RETRY_S)


async def _events(
    client: httpx.AsyncClient, url: str, search: str
) -> AsyncIterator[Mapping[str, Any]]:
    """Of one connection, until it ends."""
    query: dict[str, str | int] = {"offset": 0, "limit": 100, "search": search, "sort": "rate"}
    async with client.stream("GET", url, params=query) as response:
        if response.status_code >= 500:
            raise httpx.HTTPError(f"HTTP {response.status_code}")
        if response.status_code != 200:
            text = (await response.aread()).decode(errors="replace")[:300]
            hint = f"; {KEY_HINT}" if response.status_code == httpx.codes.UNAUTHORIZED else ""
            raise RequestFailed(f"{url}: HTTP {response.status_code}: {text}{hint}")
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))
