"""What `get` does for each kind of object: a table or JSON, once or as it changes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pilotlight.errors import InvalidInput
from pilotlight.output import Output, fit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

_FORMATS: Final = ("wide", "json")
_POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Listing:
    """How objects of one kind are shown; `row` has a cell per column."""

    columns: tuple[str, ...]
    optional: tuple[str, ...]
    """Columns that a narrow terminal goes without, the first to go first."""
    row: Callable[[dict[str, Any]], tuple[str, ...]]
    when_empty: str
    wide: tuple[str, ...] = ()
    """Columns of `-o wide` alone."""
    width: int | None = None
    """Characters of a line without `-o wide`: the longest values are shortened."""

    def table(
        self, documents: Sequence[dict[str, Any]], *, is_wide: bool
    ) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The columns and the rows."""
        rows = [self.row(each) for each in documents]
        if is_wide:
            return self.columns, rows
        kept = [at for at, name in enumerate(self.columns) if name not in self.wide]
        columns = [self.columns[at] for at in kept]
        rows = [tuple(row[at] for at in kept) for row in rows]
        if self.width is not None:
            columns, fitted = fit(columns, rows, (), self.width)
            rows = list(map(tuple, fitted))
        return tuple(columns), rows


def listing_output(format_: str | None, *, as_json: bool, watch: bool) -> Output:
    """The output that `-o`, `--json` and `-w` ask for; raises InvalidInput."""
    if format_ not in (None, *_FORMATS):
        raise InvalidInput([f"-o must be one of {', '.join(_FORMATS)}, was {format_!r}"])
    as_json = as_json or format_ == "json"
    if as_json and watch:
        raise InvalidInput(["-w prints lines of a table: leave out --json and -o json"])
    return Output(as_json, wide=format_ == "wide")


async def show(
    output: Output,
    listing: Listing,
    read: Callable[[], Awaitable[list[dict[str, Any]]]],
    *,
    watch: bool = False,
) -> None:
    """Print all objects; with `watch` go on with the rows that change, as `kubectl get -w`."""
    documents = await read()
    if output.as_json:
        output.result(documents)
        return
    columns, shown = listing.table(documents, is_wide=output.wide)
    optional = [name for name in listing.optional if name in columns]
    if shown or watch:
        output.table(columns, shown, optional=optional)
    else:
        output.note(listing.when_empty)
    while watch:
        await asyncio.sleep(_POLL_S)
        _, rows = listing.table(await read(), is_wide=output.wide)
        changed = [row for row in rows if row not in shown]
        output.table(columns, changed, optional=optional, continues=shown)
        shown = rows
