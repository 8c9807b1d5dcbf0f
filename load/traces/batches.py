"""Record batches of `TRACE_SCHEMA`: built, joined, cut to an even size, and replayed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from load.errors import TraceError
from load.schema import TRACE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from load.schema import Trace

BATCH_ROWS: Final = 16_384
"""Arrivals per batch: some hundred kilobytes, enough for vectorised work to pay."""

DEFAULT_TENANT: Final = "default"
"""Where a source knows no tenants, as Kubernetes' namespace of that name."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A trace that starts anew each time it is iterated, with the same arrivals."""

    begin: Callable[[], Iterator[pa.RecordBatch]]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Start over."""
        return self.begin()


class NameColumn:
    """Names as numbers, in order of first appearance; one dictionary for all batches of a trace."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._codes: dict[str, int] = {}
        self._dictionary = pa.array([], pa.string())
        for name in known:
            self.code(name)

    def __len__(self) -> int:
        """How many names there are."""
        return len(self._codes)

    def names(self) -> list[str]:
        """All names, in order of their numbers."""
        return list(self._codes)

    def code(self, name: str) -> int:
        """The number of `name`, a new one if it is new."""
        return self._codes.setdefault(name, len(self._codes))

    def codes(self, names: pa.Array) -> NDArray[np.int32]:
        """The numbers of a column of strings without nulls, plain or with a dictionary."""
        encoded = names if pa.types.is_dictionary(names.type) else names.dictionary_encode()
        own = np.array([self.code(name) for name in encoded.dictionary.to_pylist()], np.int32)
        return own[encoded.indices.to_numpy(zero_copy_only=False)] if len(encoded) else own[:0]

    def column(self, codes: NDArray[np.int32]) -> pa.DictionaryArray:
        """The names of `codes` as a column of `TRACE_SCHEMA`."""
        if len(self._dictionary) != len(self._codes):
            self._dictionary = pa.array(list(self._codes), pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), self._dictionary)


def constant(name: str, rows: int) -> pa.DictionaryArray:
    """A column that says `name` in every row."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([name]))


def arrivals(
    at_s: NDArray[np.float64],
    *,
    model: pa.DictionaryArray,
    tenant: pa.DictionaryArray | str = DEFAULT_TENANT,
    input_size: NDArray[np.int64] | int = 1,
    output_size: NDArray[np.int64] | int = 0,
    deadline_s: NDArray[np.float64] | None = None,
) -> pa.RecordBatch:
    """One batch; a scalar stands for every row, NaN in `deadline_s` for none."""
    rows = len(at_s)
    columns = [
        pa.array(at_s, pa.float64()),
        constant(tenant, rows) if isinstance(tenant, str) else tenant,
        model,
        pa.array(np.broadcast_to(np.asarray(input_size, np.int64), rows)),
        pa.array(np.broadcast_to(np.asarray(output_size, np.int64), rows)),
        pa.nulls(rows, pa.float64())
        if deadline_s is None
        else pa.array(deadline_s, pa.float64(), from_pandas=True),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TRACE_SCHEMA)


def times(batch: pa.RecordBatch) -> NDArray[np.float64]:
    """The arrival times of a batch, in seconds."""
    at_s: NDArray[np.float64] = batch.column("at_s").to_numpy()
    return at_s


def full_names(batch: pa.RecordBatch) -> pa.Array:
    """Whom each arrival is for, as `tenant/model`."""
    tenants, models = (batch.column(name).dictionary_decode() for name in ("tenant", "model"))
    return pc.binary_join_element_wise(tenants, models, "/")


def replaced(batch: pa.RecordBatch, name: str, column: object) -> pa.RecordBatch:
    """`batch` with another column of that name."""
    index = TRACE_SCHEMA.get_field_index(name)
    return batch.set_column(index, TRACE_SCHEMA.field(index), column)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of at least one, in this order; dictionaries are united."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def sorted_by_time(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows by arrival; equal times keep their order."""
    at_s = times(batch)
    if bool(np.all(at_s[1:] >= at_s[:-1])):
        return batch
    return batch.take(pa.array(np.argsort(at_s, kind="stable")))


def even_batches(trace: Trace, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """The same arrivals in batches of `rows`, the last one smaller, none empty.

    Where the trace breaks off with a TraceError, all that came before is given first.
    """
    held: list[pa.RecordBatch] = []
    count = 0
    try:
        for batch in trace:
            held.append(batch)
            count += batch.num_rows
            if count >= rows:
                whole = joined(held)
                full = count - count % rows
                for start in range(0, full, rows):
                    yield whole.slice(start, rows)
                held, count = [whole.slice(full)], count - full
    except TraceError:
        if count:
            yield joined(held)
        raise
    if count:
        yield joined(held)
