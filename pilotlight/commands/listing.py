"""What `get` does for each kind of object: a table or JSON, once or as it changes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pilotlight.errors import InvalidInput
from pilotlight.output import Output

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
    shown = [listing.row(each) for each in documents]
    if shown or watch:
        output.table(listing.columns, shown, optional=listing.optional)
    else:
        output.note(listing.when_empty)
    while watch:
        await asyncio.sleep(_POLL_S)
        rows = [listing.row(each) for each in await read()]
        changed = [row for row in rows if row not in shown]
        output.table(listing.columns, changed, optional=listing.optional, continues=shown)
        shown = rows
