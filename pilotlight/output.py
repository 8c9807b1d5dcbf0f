"""Output of the command line: results on standard output, everything else on standard error.

With `--json` standard output holds one JSON document and nothing else. Colours, ruled tables and
progress bars are for terminals only.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from load.errors import GeneratorError
from pilotlight.errors import InvalidInput

_SILENCE_S: Final = 1.0
"""Whoever waits for longer is told for what."""
_RULE_WIDTH: Final = 3
"""Characters that a ruled table adds per column."""
_GAP: Final = "   "
"""Between the columns of a table without rules."""


@dataclass(frozen=True, slots=True)
class Output:
    """Prints the result of a command as JSON or as text."""

    as_json: bool = False
    wide: bool = False
    """Whether tables keep columns and values that the terminal has no room for."""
    watch: bool = False
    """Whether a listing goes on with what changes."""

    def result(self, document: Any, lines: Sequence[str] = ()) -> None:
        """Print the document with `--json`, else the lines."""
        if self.as_json:
            sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        else:
            for line in lines:
                sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        title: str = "",
        optional: Sequence[str] = (),
        continues: Sequence[Sequence[str]] | None = None,
    ) -> None:
        """Print a table; nothing with `--json`.

        On a terminal that is too narrow the `optional` columns are left out, the first named first;
        then the longest values are shortened. `continues`: rows that were printed before, with the
        names of the columns; these are aligned with them.
        """
        if self.as_json:
            return
        rows = [*(continues or ()), *rows]
        if optional and not self.wide and sys.stdout.isatty():
            columns, rows = fit(columns, rows, optional, Console().width)
        if continues is None:
            write_table(columns, rows, title=title)
        else:
            _write_plain([columns, *rows], skip=1 + len(continues))

    def line(self, text: str = "") -> None:
        """Print a line of the result; nothing with `--json`."""
        if not self.as_json:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def note(self, text: str) -> None:
        _write_error_line(text)

    @asynccontextmanager
    async def waiting(self, what: str) -> AsyncIterator[None]:
        """Say what the command waits for, if that takes a second."""
        timer = asyncio.get_running_loop().call_later(_SILENCE_S, self.note, f"{what} …")
        try:
            yield
        finally:
            timer.cancel()

    def failure(
        self,
        message: str,
        problems: Sequence[str] = (),
        *,
        partial: Mapping[str, Any] | None = None,
    ) -> None:
        """Print why a command failed; with `--json` also a document with the partial result."""
        for line in problems or [message]:
            sys.stderr.write(f"error: {line}\n")
        sys.stderr.flush()
        if self.as_json:
            listed = {"problems": list(problems)} if problems else {}
            self.result({"error": message, **listed, **(partial or {})})


def write_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """Print a table on standard output: with rules if it is a terminal of sufficient width.

    A row is always one line, so that every value can be copied whole.
    """
    cells = [[*map(str, columns)], *[list(row) for row in rows]]
    widths = _widths(cells)
    if sys.stdout.isatty():
        console = Console()
        if sum(widths) + _RULE_WIDTH * len(widths) < console.width:
            console.print(_ruled_table(columns, rows, title))
            return
    if title:
        sys.stdout.write(title + "\n")
    _write_plain(cells)


def _write_plain(table: Sequence[Sequence[str]], *, skip: int = 0) -> None:
    """Print aligned lines, but not the first `skip` of them."""
    widths = _widths(table)
    for row in table[skip:]:
        line = _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")
    sys.stdout.flush()


def fit(
    columns: Sequence[str], rows: Sequence[Sequence[str]], optional: Sequence[str], width: int
) -> tuple[list[str], list[list[str]]]:
    """The table with as many of its columns and characters as `width` characters have room for."""
    table = [list(columns), *[list(row) for row in rows]]
    for name in optional:
        if _plain_width(table) <= width:
            break
        index = table[0].index(name)
        for row in table:
            del row[index]
    if (excess := _plain_width(table) - width) > 0:
        _shorten(table, excess)
    return table[0], table[1:]


def _widths(table: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*table, strict=True)]


def _plain_width(table: Sequence[Sequence[str]]) -> int:
    widths = _widths(table)
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _shorten(table: list[list[str]], excess: int) -> None:
    """Take `excess` characters from the widest column, down to the width of its name."""
    widths = _widths(table)
    index = widths.index(max(widths))
    kept = max(widths[index] - excess, len(table[0][index]), 2)
    for row in table:
        if len(row[index]) > kept:
            row[index] = row[index][: kept - 1] + "…"


def _ruled_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> Table:
    table = Table(title=title or None, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Yields a function of done, total and text: a bar on a terminal, else lines."""
    if not sys.stderr.isatty():
        yield lambda _done, _total, text: _write_error_line(f"{title}: {text}")
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[text]}"),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(title, total=1, text="")

        def update(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total, text=text)

        yield update


class ProgressReporter:
    """Progress of a starting platform: a bar until `close_bar`, later steps as lines."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._bar = ExitStack()
        self._update = self._bar.enter_context(progress_bar("platform"))
        self._is_bar_open = True
        self.is_quiet = False
        """Whether steps after `close_bar` are not printed."""

    def on_progress(self, done: int, total: int, text: str) -> None:
        if self._is_bar_open:
            self._update(done, total, text)
        elif not self.is_quiet:
            self._output.note(text)

    def close_bar(self) -> None:
        """Idempotent."""
        self._is_bar_open = False
        self._bar.close()


def _write_error_line(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def format_bytes(amount: float) -> str:
    """A size in decimal units: `242 MB`."""
    for factor, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if amount >= factor:
            scaled = amount / factor
            return f"{scaled:.0f} {unit}" if scaled >= 10 else f"{scaled:.1f} {unit}"
    return f"{amount:.0f} B"


def format_age(seconds: float) -> str:
    """As kubectl prints ages: `12s`, `3m20s`, `2h5m`, `4d`; 0s for a time in the future."""
    whole = max(int(seconds), 0)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if minutes < 2:
        return f"{whole}s"
    if minutes < 10:
        return f"{minutes}m{whole % 60}s"
    if hours < 2:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m"
    return f"{hours}h" if days < 2 else f"{days}d"


# The output files of simulations and experiments: which may be replaced, and their removal.


def require_free(paths: Sequence[Path], inputs: Sequence[str] = (), *, overwrite: bool) -> None:
    """Raises InvalidInput if a path exists and may not be replaced, such as one of `inputs`."""
    from load.generator.records import require_replaceable  # comes with an extra

    for path in paths:
        try:
            require_replaceable(path, inputs, overwrite=overwrite, flag="--out")
        except GeneratorError as error:
            raise InvalidInput([str(error)]) from None
        except OSError as error:
            raise InvalidInput([f"--out: cannot write {path}: {error}"]) from error


def clear_outputs(paths: Sequence[Path]) -> None:
    """Make the folders of the files, and delete the files; raises InvalidInput."""
    for path in paths:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise InvalidInput(
                [f"--out: cannot write {path.parent}: it must be a folder, but it is a file"]
            ) from None
        except OSError as error:
            raise InvalidInput([f"--out: cannot write {path.parent}: {error}"]) from error
