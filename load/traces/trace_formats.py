"""The supported trace formats, each with its columns, parameters and reader.

A new format is a reader in `readers` and an entry here.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from load.errors import TraceError
from load.traces import readers
from load.traces.batches import (
    BATCH_ROWS,
    DEFAULT_TENANT,
    ModelIndex,
    arrival_batch,
    times_s,
    with_column,
)
from load.traces.blocks import Block, sort_within_window
from load.traces.parameters import (
    BinCounts,
    CountParameters,
    FileParameters,
    OneModelParameters,
    RequestParameters,
    Seed,
    TenantCountParameters,
    TenantParameters,
    expand,
    portions,
)
from load.traces.tables import TraceTable

RowReader = Callable[[Sequence[TraceTable], Any], Iterator[Block]]
CountReader = Callable[[Sequence[TraceTable], ModelIndex], Iterator[BinCounts]]


@dataclass(frozen=True, slots=True)
class Format:
    """One format; either `rows` or `counts` reads it."""

    name: str
    required: str
    """The required columns, for messages."""
    matches: Callable[[frozenset[str]], bool]
    """True for the columns of a file in this format."""
    parameters: type[FileParameters]
    rows: RowReader | None = None
    """Reads arrivals in the file's order; None if a row is not one arrival."""
    counts: CountReader | None = None
    window_s: float = 10.0
    """Maximum time, in seconds, by which rows may be out of order."""
    is_since_first: bool = False
    """Whether the file has clock times, which are converted to times since the first arrival."""

    def read(
        self, tables: Sequence[TraceTable], given: Any, seed: Seed
    ) -> Iterator[pa.RecordBatch]:
        """The arrivals by time. Raises TraceErrors while it is iterated."""
        if self.rows is None:
            return self._drawn(tables, given, seed)
        window_s = self.window_s if given.window is None else given.window
        trace = sort_within_window(self.rows(tables, given), window_s=window_s)
        return _since_first(trace) if self.is_since_first else trace

    def _drawn(
        self, tables: Sequence[TraceTable], given: Any, seed: Seed
    ) -> Iterator[pa.RecordBatch]:
        assert self.counts is not None
        index, rng = ModelIndex(getattr(given, "tenant", DEFAULT_TENANT)), seed.rng()
        for some in self.counts(tables, index):
            for portion in portions(some, BATCH_ROWS):
                drawn = expand(portion, bin_s=readers.MINUTE_S, cv=given.cv, rng=rng)
                yield arrival_batch(drawn.at_s, **index.columns(drawn.model))


def _since_first(trace: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    start_s: float | None = None
    for batch in trace:
        at_s = times_s(batch)
        start_s = float(at_s[0]) if start_s is None else start_s
        yield with_column(batch, "at_s", at_s - start_s)


def _has(*names: str) -> Callable[[frozenset[str]], bool]:
    return lambda columns: columns.issuperset(names)


def _is_huawei(columns: frozenset[str]) -> bool:
    has_time = "minute" in columns or columns.issuperset({"day", "time"})
    is_long = columns.issuperset({"minute", "model", "count"})
    return has_time and not is_long and bool(readers.huawei_functions(sorted(columns)))


_ALL: Final = (
    Format("arrivals", "at_s, model", _has("at_s", "model"), TenantParameters, readers.own_columns),
    Format(
        "azure-llm",
        "TIMESTAMP, ContextTokens, GeneratedTokens",
        _has("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
        OneModelParameters,
        readers.azure_llm,
        is_since_first=True,
    ),
    Format(
        "azure-functions-2019",
        "HashOwner, HashFunction, and 1 to 1440",
        _has("HashOwner", "HashFunction", "1"),
        CountParameters,
        counts=readers.azure_2019,
    ),
    Format(
        "azure-functions-2021",
        "app, func, end_timestamp, duration",
        _has("app", "func", "end_timestamp", "duration"),
        RequestParameters,
        readers.azure_functions_2021,
        # Files are sorted by end or by start: starts are out of order by up to the longest call.
        window_s=3600.0,
    ),
    Format(
        "gentd26-requests",
        "gmt_create, num_images_per_prompt, checkpoint_model_version_id",
        _has("gmt_create", "num_images_per_prompt", "checkpoint_model_version_id"),
        TenantParameters,
        readers.gentd26_requests,
        is_since_first=True,
    ),
    Format(
        "gentd26-per-minute",
        "minute, model, count",
        _has("minute", "model", "count"),
        TenantCountParameters,
        counts=readers.gentd26_per_minute,
    ),
    Format(
        "huawei",
        "minute (or day, time), and a column of counts per function",
        _is_huawei,
        TenantCountParameters,
        counts=readers.huawei,
    ),
)

FORMATS: Final = {each.name: each for each in _ALL}
"""By the name that a trace specification uses."""


def detect_format(table: TraceTable) -> Format:
    """The format with the columns of the file. Raises TraceError."""
    found = [each for each in _ALL if each.matches(frozenset(table.columns))]
    if len(found) == 1:
        return found[0]
    if found:
        names = " and ".join(each.name for each in found)
        raise TraceError(f"{table.path} fits {names}; name one, as in {found[0].name}:PATH")
    known = "; ".join(f"{each.name} has {each.required}" for each in _ALL)
    raise TraceError(f"{table.path} has the columns {_shown(table)}, of no known format: {known}")


def require_format(table: TraceTable, wanted: Format) -> None:
    """Raises TraceError for a file without the format's columns."""
    columns = frozenset(table.columns)
    if not wanted.matches(columns):
        others = [each.name for each in _ALL if each.matches(columns)]
        hint = f"; it looks like {others[0]}" if others else ""
        raise TraceError(
            f"{wanted.name} needs the columns {wanted.required}; "
            f"{table.path} has {_shown(table)}{hint}"
        )


def _shown(table: TraceTable) -> str:
    names = [repr(name[:40]) for name in table.columns]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
