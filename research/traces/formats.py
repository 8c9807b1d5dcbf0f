"""The public trace formats, each with its columns, parameters and reader.

Sources are in docs/load.md. A new format is a reader in `readers`, an entry here and its name in
`pyproject.toml`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from load.traces.batches import (
    BATCH_ROWS,
    DEFAULT_TENANT,
    ModelIndex,
    arrival_batch,
    times_s,
    with_column,
)
from load.traces.blocks import Block
from load.traces.parameters import Seed, TenantParameters
from load.traces.tables import TraceTable
from load.traces.trace_formats import Format, has_columns, open_rows
from research.traces import readers
from research.traces.counts import BinCounts, expand, portions
from research.traces.readers import (
    CountParameters,
    OneModelParameters,
    RequestParameters,
    TenantCountParameters,
)

RowReader = Callable[[Sequence[TraceTable], Any], Iterator[Block]]
CountReader = Callable[[Sequence[TraceTable], ModelIndex], Iterator[BinCounts]]


def _drawn(
    counts: CountReader, tables: Sequence[TraceTable], given: Any, seed: Seed
) -> Iterator[pa.RecordBatch]:
    index, rng = ModelIndex(getattr(given, "tenant", DEFAULT_TENANT)), seed.rng()
    for some in counts(tables, index):
        for portion in portions(some, BATCH_ROWS):
            drawn = expand(portion, bin_s=readers.MINUTE_S, cv=given.cv, rng=rng)
            yield arrival_batch(drawn.at_s, **index.columns(drawn.model))


def _rows_since_first(
    rows: RowReader, tables: Sequence[TraceTable], given: Any, seed: Seed
) -> Iterator[pa.RecordBatch]:
    """Of a file with clock times: times since the first arrival."""
    return _since_first(open_rows(rows, tables, given, seed))


def _since_first(trace: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    start_s: float | None = None
    for batch in trace:
        at_s = times_s(batch)
        start_s = float(at_s[0]) if start_s is None else start_s
        yield with_column(batch, "at_s", at_s - start_s)


def _is_huawei(columns: frozenset[str]) -> bool:
    has_time = "minute" in columns or columns.issuperset({"day", "time"})
    is_long = columns.issuperset({"minute", "model", "count"})
    return has_time and not is_long and bool(readers.huawei_functions(sorted(columns)))


AZURE_LLM: Final = Format(
    "azure-llm",
    "TIMESTAMP, ContextTokens, GeneratedTokens",
    has_columns("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    OneModelParameters,
    partial(_rows_since_first, readers.azure_llm),
)
AZURE_FUNCTIONS_2019: Final = Format(
    "azure-functions-2019",
    "HashOwner, HashFunction, and 1 to 1440",
    has_columns("HashOwner", "HashFunction", "1"),
    CountParameters,
    partial(_drawn, readers.azure_2019),
)
AZURE_FUNCTIONS_2021: Final = Format(
    "azure-functions-2021",
    "app, func, end_timestamp, duration",
    has_columns("app", "func", "end_timestamp", "duration"),
    RequestParameters,
    # Files are sorted by end or by start: starts are out of order by up to the longest call.
    partial(open_rows, readers.azure_functions_2021, window_s=3600.0),
)
GENTD26_REQUESTS: Final = Format(
    "gentd26-requests",
    "gmt_create, num_images_per_prompt, checkpoint_model_version_id",
    has_columns("gmt_create", "num_images_per_prompt", "checkpoint_model_version_id"),
    TenantParameters,
    partial(_rows_since_first, readers.gentd26_requests),
)
GENTD26_PER_MINUTE: Final = Format(
    "gentd26-per-minute",
    "minute, model, count",
    has_columns("minute", "model", "count"),
    TenantCountParameters,
    partial(_drawn, readers.gentd26_per_minute),
)
HUAWEI: Final = Format(
    "huawei",
    "minute (or day, time), and a column of counts per function",
    _is_huawei,
    TenantCountParameters,
    partial(_drawn, readers.huawei),
)
MOONCAKE: Final = Format(
    "mooncake",
    "timestamp_ms, input_length, output_length, hash_ids",
    has_columns("timestamp_ms", "input_length", "output_length", "hash_ids"),
    OneModelParameters,
    partial(open_rows, readers.mooncake),
)
