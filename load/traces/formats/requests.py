"""Formats with a row per request: each block of a file as arrivals, in the file's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from load.errors import InvalidTrace
from load.traces.batches import NameColumn, arrivals, constant
from load.traces.formats.blocks import moments, names, numbers, whole_numbers
from load.traces.formats.tables import Block, blocks
from load.traces.name_columns import Functions
from load.traces.order import Located

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from load.traces.formats.tables import TraceTable

_NANOSECONDS: Final = 1e-9


def azure_llm(tables: Sequence[TraceTable], *, model: str, tenant: str) -> Iterator[Located]:
    """Azure's LLM traces of 2023 and 2024; the first row is time 0."""
    start_ns: int | None = None
    for block in _all(tables, ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]):
        stamps = moments(block, "TIMESTAMP")
        start_ns = int(stamps[0]) if start_ns is None else start_ns
        batch = arrivals(
            _since(stamps, start_ns),
            model=constant(model, len(stamps)),
            tenant=tenant,
            input_size=whole_numbers(block, "ContextTokens"),
            output_size=whole_numbers(block, "GeneratedTokens"),
        )
        yield Located(block.path, block.first_row, batch)


def azure_functions_2021(tables: Sequence[TraceTable]) -> Iterator[Located]:
    """A call arrives `duration` before it ends; the tenant is its application.

    Calls that began before the trace count from its start.
    """
    functions = Functions()
    for block in _all(tables, ["app", "func", "end_timestamp", "duration"]):
        own = functions.numbered(names(block, "func"), names(block, "app"))
        began_s = numbers(block, "end_timestamp") - numbers(block, "duration")
        batch = arrivals(
            np.maximum(began_s, 0.0), model=functions.models(own), tenant=functions.tenants(own)
        )
        yield Located(block.path, block.first_row, batch)


def mooncake(tables: Sequence[TraceTable], *, model: str, tenant: str) -> Iterator[Located]:
    """Mooncake's requests: the published JSON lines (`timestamp`), or CSV (`timestamp_ms`)."""
    for table in tables:
        time = "timestamp_ms" if "timestamp_ms" in table.columns else "timestamp"
        for block in blocks(table, [time, "input_length", "output_length"]):
            at_s = numbers(block, time) / 1000.0
            batch = arrivals(
                at_s,
                model=constant(model, len(at_s)),
                tenant=tenant,
                input_size=whole_numbers(block, "input_length"),
                output_size=whole_numbers(block, "output_length"),
            )
            yield Located(block.path, block.first_row, batch)


def gentd26_requests(tables: Sequence[TraceTable], *, tenant: str) -> Iterator[Located]:
    """GenTD26's requests, whatever became of them; items are images. The first row is time 0.

    Requests without a model are of the model `unknown`, those without a number ask for one image.
    """
    models = NameColumn()
    start_ns: int | None = None
    wanted = ["gmt_create", "num_images_per_prompt", "checkpoint_model_version_id"]
    for block in _all(tables, wanted):
        stamps = moments(block, "gmt_create")
        start_ns = int(stamps[0]) if start_ns is None else start_ns
        own = models.codes(names(block, "checkpoint_model_version_id", absent="unknown"))
        batch = arrivals(
            _since(stamps, start_ns),
            model=models.column(own),
            tenant=tenant,
            input_size=whole_numbers(block, "num_images_per_prompt", absent=1),
        )
        yield Located(block.path, block.first_row, batch)


def own_columns(tables: Sequence[TraceTable], *, tenant: str) -> Iterator[Located]:
    """The columns of `TRACE_SCHEMA`; all but `at_s` and `model` may be missing."""
    functions = Functions(tenant)
    optional = ("tenant", "input_size", "output_size", "deadline_s")
    for table in tables:
        has = [name for name in optional if name in table.columns]
        for block in blocks(table, ["at_s", "model", *has]):
            at_s = numbers(block, "at_s")
            tenants = names(block, "tenant", absent=tenant) if "tenant" in has else None
            own = functions.numbered(names(block, "model"), tenants)
            batch = arrivals(
                at_s,
                model=functions.models(own),
                tenant=functions.tenants(own),
                input_size=whole_numbers(block, "input_size", absent=1)
                if "input_size" in has
                else 1,
                output_size=whole_numbers(block, "output_size", absent=0)
                if "output_size" in has
                else 0,
                deadline_s=_deadlines(block) if "deadline_s" in has else None,
            )
            yield Located(block.path, block.first_row, batch)


def _deadlines(block: Block) -> NDArray[np.float64]:
    """Seconds above 0; an empty cell is NaN, none."""
    values = numbers(block, "deadline_s", absent=np.nan)
    if (values == 0.0).any():
        row = block.first_row + int(np.argmax(values == 0.0))
        raise InvalidTrace(block.path, row, "deadline_s must be more than 0, or empty for none")
    return values


def _since(stamps: NDArray[np.int64], start_ns: int) -> NDArray[np.float64]:
    since_s: NDArray[np.float64] = np.multiply(stamps - start_ns, _NANOSECONDS, dtype=np.float64)
    return since_s


def _all(tables: Sequence[TraceTable], wanted: Sequence[str]) -> Iterator[Block]:
    for table in tables:
        yield from blocks(table, wanted)
