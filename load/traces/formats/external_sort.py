"""Counts in any order sorted by time on disk: one temporary file per hour."""

from __future__ import annotations

import contextlib
import tempfile
from typing import IO, TYPE_CHECKING, Final

import numpy as np

from load.traces.expansion import BIN_COUNT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from load.traces.expansion import BinCounts

_HOUR_S: Final = 3600.0


def sort_by_hour(unordered: Iterable[BinCounts]) -> Iterator[BinCounts]:
    """The counts hour by hour, sorted by bin, then model, in memory for one hour."""
    with contextlib.ExitStack() as stack:
        files: dict[int, IO[bytes]] = {}
        for counts in unordered:
            hours = (counts["start_s"] // _HOUR_S).astype(np.int64)
            for hour in np.unique(hours).tolist():
                if hour not in files:
                    files[hour] = stack.enter_context(tempfile.TemporaryFile())
                files[hour].write(counts[hours == hour].tobytes())
        for hour in sorted(files):
            files[hour].seek(0)
            rows = np.frombuffer(files[hour].read(), BIN_COUNT)
            yield rows[np.lexsort((rows["model"], rows["start_s"]))]
