"""What the user sees: results on standard output, everything else on standard error.

With `--json` standard output carries one JSON document (or one per line where said so) and nothing
else. Colour, tables with lines and progress bars are for terminals only.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_AROUND: Final = 3
"""Characters that lines take per column."""


@dataclass(frozen=True, slots=True)
class Output:
    """How to talk to the one who called: `as_json`, or for eyes."""

    as_json: bool = False

    def result(self, document: Any, lines: Sequence[str] = ()) -> None:
        """The result of a command: the document with `--json`, else the lines."""
        if self.as_json:
            sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        else:
            for line in lines:
                sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
        """A table: with lines on a terminal, aligned columns elsewhere; none with `--json`."""
        if not self.as_json:
            write_table(columns, rows, title=title)

    def line(self, text: str = "") -> None:
        """A line of the result; none with `--json`."""
        if not self.as_json:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def note(self, text: str) -> None:
        """A remark that is not the result."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def failure(
        self,
        message: str,
        problems: Sequence[str] = (),
        *,
        kept: Mapping[str, Any] | None = None,
    ) -> None:
        """Why a command failed; with `--json` also as a document, together with what is kept."""
        for line in problems or [message]:
            sys.stderr.write(f"error: {line}\n")
        sys.stderr.flush()
        if self.as_json:
            listed = {"problems": list(problems)} if problems else {}
            self.result({"error": message, **listed, **(kept or {})})


def write_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """Print a table to standard output: on a terminal with lines, where it is wide enough.

    A row is never broken, so that every value can be read and copied whole.
    """
    cells = [[*map(str, columns)], *[list(row) for row in rows]]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    if sys.stdout.isatty():
        console = Console()
        if sum(widths) + _AROUND * len(widths) < console.width:
            console.print(_with_lines(columns, rows, title))
            return
    if title:
        sys.stdout.write(title + "\n")
    for row in cells:
        line = "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")
    sys.stdout.flush()


def _with_lines(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> Table:
    table = Table(title=title or None, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on standard error: call it with done, total and a text; plain lines off a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _total, text: _plain(f"{title}: {text}")
        return
    with Progress(
        TextColumn("{task.description}"), BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"), TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[text]}"),
        console=Console(stderr=True), transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task(title, total=1, text="")

        def update(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total, text=text)

        yield update


def _plain(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
