"""Record batches of `TRACE_SCHEMA`: made, cut, joined, summed up, with names as columns."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from load.errors import TraceError
from load.schema import TRACE_SCHEMA, Trace

BATCH_ROWS: Final = 16_384
"""Arrivals per batch: a few hundred kilobytes, enough that vectorised work pays off."""

DEFAULT_TENANT: Final = "default"
"""Tenant of sources without tenants, after Kubernetes' namespace of that name."""


@dataclass(frozen=True, slots=True)
class ReplayableTrace:
    """A trace that can be iterated several times, with the same arrivals each time."""

    start: Callable[[], Iterator[pa.RecordBatch]]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.start()


def constant_column(name: str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([name]))


def arrival_batch(
    at_s: NDArray[np.float64],
    *,
    model: pa.DictionaryArray | str,
    tenant: pa.DictionaryArray | str = DEFAULT_TENANT,
    input_size: NDArray[np.int64] | int = 1,
    output_size: NDArray[np.int64] | int = 0,
    deadline_s: NDArray[np.float64] | None = None,
    blocks: pa.Array | None = None,
) -> pa.RecordBatch:
    """One batch; a scalar applies to every row, NaN in `deadline_s` means no deadline."""
    rows = len(at_s)
    columns = [
        pa.array(at_s, pa.float64()),
        *(constant_column(n, rows) if isinstance(n, str) else n for n in (tenant, model)),
        *(
            pa.array(np.broadcast_to(np.asarray(size, np.int64), rows))
            for size in (input_size, output_size)
        ),
        pa.nulls(rows, pa.float64())
        if deadline_s is None
        else pa.array(deadline_s, pa.float64(), from_pandas=True),
        pa.nulls(rows, TRACE_SCHEMA.field("blocks").type) if blocks is None else blocks,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TRACE_SCHEMA)


def times_s(batch: pa.RecordBatch) -> NDArray[np.float64]:
    at_s: NDArray[np.float64] = batch.column("at_s").to_numpy()
    return at_s


def full_names(batch: pa.RecordBatch) -> pa.Array:
    """The requested model of each arrival, as `tenant/model`."""
    tenants, models = (batch.column(name).dictionary_decode() for name in ("tenant", "model"))
    return pc.binary_join_element_wise(tenants, models, "/")


def with_column(batch: pa.RecordBatch, name: str, column: object) -> pa.RecordBatch:
    """`batch` with the column `name` replaced."""
    index = TRACE_SCHEMA.get_field_index(name)
    return batch.set_column(index, TRACE_SCHEMA.field(index), column)


def concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate at least one batch, in this order; dictionaries are unified."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def sorted_by_time(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows by arrival time; the sort is stable."""
    at_s = times_s(batch)
    if bool(np.all(at_s[1:] >= at_s[:-1])):
        return batch
    return batch.take(pa.array(np.argsort(at_s, kind="stable")))


def even_batches(trace: Trace, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """The same arrivals in batches of `rows`, the last one smaller, none empty.

    Where reading the trace raises a TraceError, all arrivals before the error are yielded first.
    """
    held: list[pa.RecordBatch] = []
    count = 0
    try:
        for batch in trace:
            held.append(batch)
            count += batch.num_rows
            if count >= rows:
                whole = concat(held)
                full = count - count % rows
                for start in range(0, full, rows):
                    yield whole.slice(start, rows)
                held, count = [whole.slice(full)], count - full
    except TraceError:
        if count:
            yield concat(held)
        raise
    if count:
        yield concat(held)


@dataclass(frozen=True, slots=True)
class TraceSummary:
    arrivals: int
    last_s: float
    models: dict[str, int]
    """Arrivals by full name, `tenant/model`, in order of first appearance."""


def summarise(trace: Trace) -> TraceSummary:
    """Read the trace once, in constant memory except for the names of its models."""
    models: Counter[str] = Counter()
    last_s = 0.0
    for batch in trace:
        counted = full_names(batch).value_counts()
        names, counts = (counted.field(each).to_pylist() for each in ("values", "counts"))
        models.update(dict(zip(names, counts, strict=True)))
        last_s = float(times_s(batch)[-1]) if batch.num_rows else last_s
    return TraceSummary(models.total(), last_s, dict(models))


class NameColumn:
    """Names numbered in order of first appearance."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._codes: dict[str, int] = {}
        self._dictionary = pa.array([], pa.string())
        for name in names:
            self.code(name)

    def __len__(self) -> int:
        return len(self._codes)

    def names(self) -> list[str]:
        """All names, by number."""
        return list(self._codes)

    def code(self, name: str) -> int:
        """The number of `name`, assigned at its first use."""
        return self._codes.setdefault(name, len(self._codes))

    def codes(self, names: pa.Array) -> NDArray[np.int32]:
        """The numbers of a plain string column without nulls."""
        encoded = names.dictionary_encode()
        code_of = np.array([self.code(name) for name in encoded.dictionary.to_pylist()], np.int32)
        codes: NDArray[np.int32] = code_of[encoded.indices.to_numpy(zero_copy_only=False)]
        return codes

    def column(self, codes: NDArray[np.int32]) -> pa.DictionaryArray:
        """The names of `codes` as a column of `TRACE_SCHEMA`."""
        if len(self._dictionary) != len(self._codes):
            self._dictionary = pa.array(list(self._codes), pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), self._dictionary)


class ModelIndex:
    """Pairs of tenant and model, numbered in order of first appearance."""

    def __init__(self, tenant: str = DEFAULT_TENANT) -> None:
        """`tenant` is that of all models of a source without tenants."""
        self._tenant = tenant
        self._pairs, self._tenants, self._models = NameColumn(), NameColumn(), NameColumn()
        self._tenant_of: list[int] = []
        self._model_of: list[int] = []

    def codes(self, models: pa.Array, tenants: pa.Array | None = None) -> NDArray[np.int32]:
        """The numbers of the pairs, row by row; names hold no slash."""
        owners = pa.scalar(self._tenant) if tenants is None else tenants
        codes = self._pairs.codes(pc.binary_join_element_wise(owners, models, "/"))
        if len(self._pairs) > len(self._tenant_of):
            for pair in self._pairs.names()[len(self._tenant_of) :]:
                tenant, _, model = pair.partition("/")
                self._tenant_of.append(self._tenants.code(tenant))
                self._model_of.append(self._models.code(model))
        return codes

    def columns(self, codes: NDArray[np.int32]) -> dict[str, Any]:
        """The columns `tenant` and `model` of `arrival_batch`."""
        return {
            "tenant": self._tenants.column(np.array(self._tenant_of, np.int32)[codes]),
            "model": self._models.column(np.array(self._model_of, np.int32)[codes]),
        }
