"""Readers of the public formats: with a row per request, or with counts per minute."""

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from load.traces.batches import ModelIndex, arrival_batch
from load.traces.blocks import Block
from load.traces.parameters import (
    BIN_COUNT,
    BinCounts,
    FileParameters,
    OneModelParameters,
    TenantParameters,
    bin_counts,
)
from load.traces.tables import TraceTable

_SECONDS_PER_NS: Final = 1e-9
_OPTIONAL: Final = ("tenant", "input_size", "output_size", "deadline_s")


def azure_llm(tables: Sequence[TraceTable], given: OneModelParameters) -> Iterator[Block]:
    """Azure's LLM traces of 2023 and 2024; the first row is time 0."""
    clock = _SinceFirstRow()
    for block in _all(tables, ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]):
        yield _arrivals(
            block,
            clock.elapsed_s(block, "TIMESTAMP"),
            model=given.model,
            tenant=given.tenant,
            input_size=block.whole_numbers("ContextTokens"),
            output_size=block.whole_numbers("GeneratedTokens"),
        )


def azure_functions_2021(tables: Sequence[TraceTable], _: FileParameters) -> Iterator[Block]:
    """A call arrives `duration` before it ends; the tenant is its application.

    Calls that began before the trace arrive at its start.
    """
    index = ModelIndex()
    for block in _all(tables, ["app", "func", "end_timestamp", "duration"]):
        models = index.codes(block.names("func"), block.names("app"))
        start_s = block.numbers("end_timestamp") - block.numbers("duration")
        yield _arrivals(block, np.maximum(start_s, 0.0), **index.columns(models))


def gentd26_requests(tables: Sequence[TraceTable], given: TenantParameters) -> Iterator[Block]:
    """GenTD26's requests, whatever their result; items are images. The first row is time 0.

    Requests without a model are for the model `unknown`, those without a number for one image.
    """
    clock, index = _SinceFirstRow(), ModelIndex(given.tenant)
    wanted = ["gmt_create", "num_images_per_prompt", "checkpoint_model_version_id"]
    for block in _all(tables, wanted):
        at_s = clock.elapsed_s(block, "gmt_create")
        models = index.codes(block.names("checkpoint_model_version_id", default="unknown"))
        images = block.whole_numbers("num_images_per_prompt", default=1)
        yield _arrivals(block, at_s, **index.columns(models), input_size=images)


def own_columns(tables: Sequence[TraceTable], given: TenantParameters) -> Iterator[Block]:
    """The columns of `TRACE_SCHEMA`; all but `at_s` and `model` are optional."""
    index = ModelIndex(given.tenant)
    for table in tables:
        optional = [name for name in _OPTIONAL if name in table.columns]
        for block in table.blocks(["at_s", "model", *optional]):
            at_s = block.numbers("at_s")
            tenants = block.names("tenant", default=given.tenant) if "tenant" in optional else None
            columns = index.columns(index.codes(block.names("model"), tenants))
            for name, default in (("input_size", 1), ("output_size", 0)):
                if name in optional:
                    columns[name] = block.whole_numbers(name, default=default)
            if "deadline_s" in optional:
                columns["deadline_s"] = block.numbers("deadline_s", default=np.nan)
                allowed = "more than 0, or empty for none"
                block.check("deadline_s", columns["deadline_s"] != 0.0, allowed)
            yield _arrivals(block, at_s, **columns)


def _all(tables: Sequence[TraceTable], wanted: Sequence[str]) -> Iterator[Block]:
    for table in tables:
        yield from table.blocks(wanted)


def _arrivals(block: Block, at_s: NDArray[np.float64], **columns: Any) -> Block:
    return Block(block.path, block.first_row, arrival_batch(at_s, **columns))


class _SinceFirstRow:
    """Seconds since the first row of a trace."""

    def __init__(self) -> None:
        self._start_ns: int | None = None

    def elapsed_s(self, block: Block, column: str) -> NDArray[np.float64]:
        stamps = block.timestamps_ns(column)
        self._start_ns = int(stamps[0]) if self._start_ns is None else self._start_ns
        return np.multiply(stamps - self._start_ns, _SECONDS_PER_NS, dtype=np.float64)


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
    matrix = block.count_matrix(columns, maximum=_MAX_COUNT)
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
