"""What a run writes: one row per request, gathered into record batches, in flat memory.

A request leaves a `Row`; columns that follow from others are worked out for a whole batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from load.schema import RECORD_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats = np.ndarray[Any, np.dtype[np.float64]]
NEVER_S: Final = -1.0
"""In place of the time at which a request was placed that no pod took."""


class Row(NamedTuple):
    """What is noted of an answered request. Times in seconds of the run."""

    request_id: str
    tenant: str
    model: str
    policy: str | None
    arrival_s: float
    placed_s: float
    """When it was sent to its entry pod, or `NEVER_S`."""
    finished_s: float
    status: int
    reason: str | None
    error: str | None
    entry_pod: str | None
    predict_pod: str | None
    start: str | None
    load_s: float
    preprocess_s: float
    infer_s: float
    postprocess_s: float
    input_size: int
    output_size: int
    deadline_s: float | None
    """From the arrival."""


class Records:
    """Rows, until they are taken as a batch."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self.add = self._rows.append
        """Take in the fields of one `Row`."""

    def __len__(self) -> int:
        return len(self._rows)

    def take(self) -> pa.RecordBatch:
        """All rows since the last call."""
        row = Row(*(zip(*self._rows, strict=True) if self._rows else ((),) * len(Row._fields)))
        columns = _columns(row)
        self._rows.clear()
        arrays = [_array(columns[field.name], field.type) for field in RECORD_SCHEMA]
        return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def _columns(rows: Any) -> dict[str, Any]:
    """The columns of the schema, of a `Row` whose fields are columns."""
    arrival_s, finished_s, placed_s = map(_floats, (rows.arrival_s, rows.finished_s, rows.placed_s))
    stages_s = [
        _floats(each) for each in (rows.load_s, rows.preprocess_s, rows.infer_s, rows.postprocess_s)
    ]
    is_placed = placed_s >= 0
    network_s = np.where(is_placed, finished_s - placed_s - sum(stages_s), 0.0)
    load_s, preprocess_s, infer_s, postprocess_s = stages_s
    columns: dict[str, Any] = rows._asdict()
    return columns | {
        "scheduled_s": arrival_s,
        "sent_s": arrival_s,
        "first_byte_s": finished_s,
        "finished_s": finished_s,
        "queue_ms": 1e3 * (np.where(is_placed, placed_s, finished_s) - arrival_s),
        "load_ms": 1e3 * load_s,
        "preprocess_ms": 1e3 * preprocess_s,
        "infer_ms": 1e3 * infer_s,
        "postprocess_ms": 1e3 * postprocess_s,
        "network_ms": 1e3 * np.maximum(network_s, 0.0),
    }


def _floats(values: Sequence[float]) -> Floats:
    return np.array(values, np.float64)


def _array(values: Any, type_: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(type_):
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values, type_)
