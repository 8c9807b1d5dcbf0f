"""What `top` shows, and what keys do to it. Fits 80 columns and 24 lines."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pilotlight.quantities import format_bytes

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
    """The whole screen."""
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
