"""Cells in any order put in order of time on disk: one temporary file per hour."""

from __future__ import annotations

import contextlib
import tempfile
from typing import IO, TYPE_CHECKING, Final

import numpy as np

from load.traces.expansion import Cells

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CELL: Final = np.dtype([("start_s", "f8"), ("function", "i4"), ("count", "i8")])
_HOUR_S: Final = 3600.0


def by_hour(unordered: Iterable[Cells]) -> Iterator[Cells]:
    """The same cells hour by hour, each sorted by bin, then function; memory for one hour."""
    with contextlib.ExitStack() as stack:
        files: dict[int, IO[bytes]] = {}
        for cells in unordered:
            hours = (cells.start_s // _HOUR_S).astype(np.int64)
            for hour in np.unique(hours).tolist():
                if hour not in files:
                    files[hour] = stack.enter_context(tempfile.TemporaryFile())
                files[hour].write(_packed(cells, hours == hour))
        for hour in sorted(files):
            yield _unpacked(files[hour])


def _packed(cells: Cells, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> bytes:
    rows = np.empty(int(chosen.sum()), _CELL)
    rows["start_s"] = cells.start_s[chosen]
    rows["function"] = cells.function[chosen]
    rows["count"] = cells.count[chosen]
    return rows.tobytes()


def _unpacked(file: IO[bytes]) -> Cells:
    file.seek(0)
    rows = np.frombuffer(file.read(), _CELL)
    rows = rows[np.lexsort((rows["function"], rows["start_s"]))]
    return Cells(rows["start_s"].copy(), rows["function"].copy(), rows["count"].copy())
