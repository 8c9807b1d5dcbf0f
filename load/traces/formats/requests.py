"""Public formats with a row per request: each block of a file as arrivals, in the file's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from load.traces.batches import arrival_batch
from load.traces.formats.blocks import Block
from load.traces.name_columns import ModelIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from load.traces.formats.tables import TraceTable
    from load.traces.parameters import FileParameters, OneModelParameters, TenantParameters

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


def mooncake(tables: Sequence[TraceTable], given: OneModelParameters) -> Iterator[Block]:
    """Mooncake's requests: the published JSON lines (`timestamp`), or CSV (`timestamp_ms`)."""
    for table in tables:
        time = "timestamp_ms" if "timestamp_ms" in table.columns else "timestamp"
        for block in table.blocks([time, "input_length", "output_length"]):
            yield _arrivals(
                block,
                block.numbers(time) / 1000.0,
                model=given.model,
                tenant=given.tenant,
                input_size=block.whole_numbers("input_length"),
                output_size=block.whole_numbers("output_length"),
            )


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
