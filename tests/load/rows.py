"""Traces as rows, for comparison; every batch is checked against the invariants of a trace."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from load.schema import TRACE_SCHEMA, Trace
from load.trace_spec import open_trace
from load.traces.batches import NameColumn, arrival_batch, times_s


def rows(trace: Trace) -> list[dict[str, Any]]:
    """All arrivals, after a check of schema, order and values."""
    found: list[dict[str, Any]] = []
    before_s = 0.0
    for batch in trace:
        assert batch.schema.equals(TRACE_SCHEMA)
        batch.validate(full=True)
        assert batch.num_rows
        at_s = times_s(batch)
        assert at_s[0] >= before_s
        assert np.all(np.diff(at_s) >= 0.0)
        before_s = at_s[-1]
        found += batch.to_pylist()
    return found


def named(text: str, seed: int = 1) -> list[dict[str, Any]]:
    """The arrivals of a trace specification."""
    return rows(open_trace(text, seed=seed))


def column(found: Iterable[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in found]


def all_times(trace: Trace) -> NDArray[np.float64]:
    return np.concatenate([np.zeros(0), *(times_s(batch) for batch in trace)])


def trace_of(
    *batches: Sequence[float], model: str = "m", sizes_from: int = 0
) -> list[pa.RecordBatch]:
    """Batches with these times; `input_size` numbers the arrivals."""
    made, first = [], sizes_from
    for at_s in batches:
        sizes = np.arange(first, first + len(at_s))
        first += len(at_s)
        names = NameColumn([model])
        models = names.column(np.zeros(len(at_s), np.int32))
        made.append(arrival_batch(np.array(at_s, np.float64), model=models, input_size=sizes))
    return made


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
