"""Traces from rows."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from load.schema import TRACE_SCHEMA

Row = tuple[float, str]
"""Time, and model of the tenant `default`."""


def trace(
    rows: Iterable[Row],
    *,
    deadline_s: float | list[float] | None = None,
    tenants: Sequence[str] | None = None,
    tokens: Sequence[int] | None = None,
    items: Sequence[int] | None = None,
    blocks: Sequence[Sequence[int]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Arrivals; by default of one item each, without tokens to generate."""
    at_s, models = zip(*rows, strict=True)
    count = len(at_s)
    yield pa.RecordBatch.from_arrays(
        [
            pa.array(at_s, pa.float64()),
            pa.array(tenants or ["default"] * count, pa.string()).dictionary_encode(),
            pa.array(models, pa.string()).dictionary_encode(),
            pa.array(items or [1] * count, pa.int64()),
            pa.array(tokens or [0] * count, pa.int64()),
            pa.array(
                deadline_s if isinstance(deadline_s, list) else [deadline_s] * count, pa.float64()
            ),
            pa.array(list(blocks) if blocks else [None] * count, TRACE_SCHEMA.field("blocks").type),
        ],
        schema=TRACE_SCHEMA,
    )
