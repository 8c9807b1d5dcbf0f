"""Readers of the public formats: with a row per request, or with counts per minute."""

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import model_validator

from load.errors import InvalidTrace
from load.schema import TRACE_SCHEMA
from load.traces.batches import DEFAULT_TENANT, ModelIndex
from load.traces.blocks import Block
from load.traces.parameters import Burstiness, DurationS, FileParameters, Name, TenantParameters
from load.traces.tables import TraceTable
from load.traces.trace_formats import arrivals
from research.traces.counts import BIN_COUNT, BinCounts, bin_counts

_SECONDS_PER_NS: Final = 1e-9


class RequestParameters(FileParameters):
    """A row per request."""

    window: DurationS | None = None
    """Seconds by which a row may precede a row above it; None: the format's default."""


class OneModelParameters(TenantParameters):
    """A row per request, all for one model."""

    model: Name = "llm"


class CountParameters(FileParameters):
    """Counts per minute, from which arrivals are drawn."""

    within: Literal["uniform", "gamma"] = "uniform"
    cv: Burstiness | None = None

    @model_validator(mode="after")
    def _cv_belongs_to_gamma(self) -> "CountParameters":
        if (self.cv is not None) != (self.within == "gamma"):
            raise ValueError("should have both within=gamma and cv=…, or neither")
        return self


class TenantCountParameters(CountParameters):
    """Counts per minute, without a tenant."""

    tenant: Name = DEFAULT_TENANT


def azure_llm(tables: Sequence[TraceTable], given: OneModelParameters) -> Iterator[Block]:
    """Azure's LLM traces of 2023 and 2024; the first row is time 0."""
    clock = _SinceFirstRow()
    for block in _all_blocks(tables, ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]):
        yield arrivals(
            block,
            clock.elapsed_s(block, "TIMESTAMP"),
            model=given.model,
            tenant=given.tenant,
            input_size=block.whole_numbers("ContextTokens"),
            output_size=block.whole_numbers("GeneratedTokens"),
        )


def mooncake(tables: Sequence[TraceTable], given: OneModelParameters) -> Iterator[Block]:
    """Mooncake's traces of language models, with the blocks of prompts."""
    for block in _all_blocks(tables, ["timestamp_ms", "input_length", "output_length", "hash_ids"]):
        ids = pc.split_pattern_regex(block.names("hash_ids"), r"[^0-9]+")
        yield arrivals(
            block,
            block.numbers("timestamp_ms") / 1000,
            model=given.model,
            tenant=given.tenant,
            input_size=block.whole_numbers("input_length"),
            output_size=block.whole_numbers("output_length"),
            blocks=ids.cast(TRACE_SCHEMA.field("blocks").type),
        )


def azure_functions_2021(tables: Sequence[TraceTable], _: FileParameters) -> Iterator[Block]:
    """A call arrives `duration` before it ends; the tenant is its application.

    Calls that began before the trace arrive at its start.
    """
    index = ModelIndex()
    for block in _all_blocks(tables, ["app", "func", "end_timestamp", "duration"]):
        models = index.codes(block.names("func"), block.names("app"))
        start_s = block.numbers("end_timestamp") - block.numbers("duration")
        yield arrivals(block, np.maximum(start_s, 0.0), **index.columns(models))


def gentd26_requests(tables: Sequence[TraceTable], given: TenantParameters) -> Iterator[Block]:
    """GenTD26's requests, whatever their result; items are images. The first row is time 0.

    Requests without a model are for the model `unknown`, those without a number for one image.
    """
    clock, index = _SinceFirstRow(), ModelIndex(given.tenant)
    wanted = ["gmt_create", "num_images_per_prompt", "checkpoint_model_version_id"]
    for block in _all_blocks(tables, wanted):
        at_s = clock.elapsed_s(block, "gmt_create")
        models = index.codes(block.names("checkpoint_model_version_id", default="unknown"))
        images = block.whole_numbers("num_images_per_prompt", default=1)
        yield arrivals(block, at_s, **index.columns(models), input_size=images)


class _SinceFirstRow:
    """Seconds since the first row of a trace."""

    def __init__(self) -> None:
        self._start_ns: int | None = None

    def elapsed_s(self, block: Block, column: str) -> NDArray[np.float64]:
        stamps = timestamps_ns(block, column)
        self._start_ns = int(stamps[0]) if self._start_ns is None else self._start_ns
        return np.multiply(stamps - self._start_ns, _SECONDS_PER_NS, dtype=np.float64)


def timestamps_ns(block: Block, name: str) -> NDArray[np.int64]:
    """Dates with time, with or without a zone, as nanoseconds since 1970.

    Zones are ignored: the public traces have `Z` or `+00:00`, a trace is in one zone.
    """
    column = block.column(name)
    allowed = "a time such as 2024-05-10 00:00:03.25"
    if not pa.types.is_timestamp(column.type):
        text = pc.utf8_trim_whitespace(column.cast(pa.string()))
        column = pc.replace_substring_regex(text, r"(Z|[+-]\d\d:?\d\d)$", "")
    block.check(name, column.is_valid().to_numpy(zero_copy_only=False), allowed)
    stamps = block.cast(name, column, pa.timestamp("ns"), allowed)
    nanoseconds: NDArray[np.int64] = stamps.cast(pa.int64()).to_numpy()
    return nanoseconds


def count_matrix(block: Block, columns: Sequence[str], *, maximum: int) -> NDArray[np.int64]:
    """Whole numbers by row and column, 0 for an empty cell; converts all columns at once."""
    parts = [block.column(name) for name in columns]
    if len({str(part.type) for part in parts}) == 1:
        flat = pa.RecordBatch.from_arrays([pa.concat_arrays(parts)], ["count"])
        with contextlib.suppress(InvalidTrace):  # raised below, with its own row and column
            counts = Block(block.path, 1, flat).whole_numbers("count", maximum=maximum, default=0)
            return counts.reshape(len(columns), -1).T
    return np.column_stack(
        [block.whole_numbers(name, maximum=maximum, default=0) for name in columns]
    )


MINUTE_S: Final = 60.0
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86_400.0
_MAX_COUNT: Final = 5_000_000
"""Arrivals of a function in a minute, which are drawn in memory; public counts are far below."""
_MINUTE: Final = re.compile(r"[1-9]\d{0,3}")


def azure_2019(tables: Sequence[TraceTable], index: ModelIndex) -> Iterator[BinCounts]:
    """One file per day, in the order given; tenants are owners."""
    for day, table in enumerate(tables):
        yield from sort_by_hour(_azure_2019_rows(table, day, index))


def _azure_2019_rows(table: TraceTable, day: int, index: ModelIndex) -> Iterator[BinCounts]:
    minutes = [each for each in table.columns if _MINUTE.fullmatch(each) and int(each) <= 1440]
    start_s = np.array([int(name) - 1 for name in minutes]) * MINUTE_S + day * _DAY_S
    for block in table.blocks(["HashOwner", "HashFunction", *minutes]):
        models = index.codes(block.names("HashFunction"), block.names("HashOwner"))
        yield _matrix_counts(block, minutes, start_s, models[:, None])


def sort_by_hour(unordered: Iterable[BinCounts]) -> Iterator[BinCounts]:
    """Sorts by bin, then model, through a temporary file per hour; one hour is in memory."""
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


def gentd26_per_minute(tables: Sequence[TraceTable], index: ModelIndex) -> Iterator[BinCounts]:
    """Rows of `minute`, `model`, `count`; rows without a model belong to the model `unknown`."""

    def read(block: Block) -> tuple[NDArray[np.float64], BinCounts]:
        start_s = _minute_start_s(block)
        models = index.codes(block.names("model", default="unknown"))
        counts = bin_counts(start_s, models, block.whole_numbers("count", maximum=_MAX_COUNT))
        return start_s, counts[counts["count"] > 0]

    return _whole_minutes(tables, lambda _: ["minute", "model", "count"], read)


def huawei(tables: Sequence[TraceTable], index: ModelIndex) -> Iterator[BinCounts]:
    """A row per minute, a column per function or region: `minute,…`, or `day,time,…` in seconds."""

    def columns(table: TraceTable) -> list[str]:
        time = "minute" if "minute" in table.columns else "time"
        return [time, *huawei_functions(table.columns)]

    def read(block: Block) -> tuple[NDArray[np.float64], BinCounts]:
        if "minute" in block.batch.schema.names:
            start_s = _minute_start_s(block)
        else:
            start_s = block.numbers("time")
            block.check("time", start_s % MINUTE_S == 0, "a multiple of 60 s (counts per minute)")
        functions = huawei_functions(block.batch.schema.names)
        models = index.codes(pa.array(functions, pa.string()))
        return start_s, _matrix_counts(block, functions, start_s[:, None], models)

    return _whole_minutes(tables, columns, read)


def huawei_functions(columns: Sequence[str]) -> list[str]:
    """The columns of counts; a column without a name is an index that was saved with the table."""
    return [name for name in columns if name not in {"", "minute", "day", "time"}]


def _minute_start_s(block: Block) -> NDArray[np.float64]:
    return np.multiply(block.whole_numbers("minute"), MINUTE_S, dtype=np.float64)


def _matrix_counts(
    block: Block, columns: list[str], start_s: NDArray[np.float64], models: NDArray[np.int32]
) -> BinCounts:
    """The counts above 0 of all columns; starts and models are broadcast to the matrix."""
    matrix = count_matrix(block, columns, maximum=_MAX_COUNT)
    positive = matrix > 0
    starts_s, codes = (np.broadcast_to(each, matrix.shape)[positive] for each in (start_s, models))
    return bin_counts(starts_s, codes, matrix[positive])


def _whole_minutes(
    tables: Sequence[TraceTable],
    columns: Callable[[TraceTable], list[str]],
    read: Callable[[Block], tuple[NDArray[np.float64], BinCounts]],
) -> Iterator[BinCounts]:
    """The counts of all blocks, cut between minutes.

    `read` returns the start of each row's minute, and the counts. Raises InvalidTrace.
    """
    held = np.empty(0, BIN_COUNT)
    latest_s = -np.inf
    for table in tables:
        for block in table.blocks(columns(table)):
            start_s, counts = read(block)
            before_s = np.concatenate([[latest_s], start_s[:-1]])
            for row in np.flatnonzero(start_s < before_s)[:1].tolist():
                problem = (
                    f"minute {start_s[row] / MINUTE_S:.0f} comes after minute "
                    f"{before_s[row] / MINUTE_S:.0f}; sort the rows by minute"
                )
                raise block.error(row, problem)
            latest_s = start_s[-1]
            held = np.concatenate([held, counts])
            cut = int(np.searchsorted(held["start_s"], latest_s, side="left"))
            if cut:
                yield held[:cut]
            held = held[cut:]
    yield held


def _all_blocks(tables: Sequence[TraceTable], wanted: Sequence[str]) -> Iterator[Block]:
    for table in tables:
        yield from table.blocks(wanted)
