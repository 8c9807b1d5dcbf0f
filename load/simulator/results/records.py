"""Finished requests as record batches of `RECORD_SCHEMA`, in constant memory.

Columns that follow from others are computed for a whole batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from load.schema import ANSWER_SCHEMA, RECORD_SCHEMA
from load.simulator.results.finished_requests import FinishedRequests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load.report.run import Floats
    from registry.domain.model import ModelName


class RecordBuffer:
    """Finished requests until they are taken as a batch."""

    def __init__(self, *, has_answers: bool = False) -> None:
        """`has_answers`: there are applications, the records have the columns of their answers."""
        self.rows = FinishedRequests()
        self.schema = ANSWER_SCHEMA if has_answers else RECORD_SCHEMA

    def take(self) -> pa.RecordBatch:
        """All requests since the last call."""
        rows, derived = self.rows, _derived(self.rows)
        if self.schema is ANSWER_SCHEMA:
            derived |= _answers(rows)
        arrays = [
            _array(derived[name] if name in derived else getattr(rows, name), type_)
            for name, type_ in zip(self.schema.names, self.schema.types, strict=True)
        ]
        rows.clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _derived(rows: FinishedRequests) -> dict[str, Any]:
    """Columns of the schema that are computed."""
    arrival_s, finished_s, placed_s = map(_floats, (rows.arrival_s, rows.finished_s, rows.placed_s))
    stages_s = [
        _floats(each) for each in (rows.load_s, rows.preprocess_s, rows.infer_s, rows.postprocess_s)
    ]
    is_placed = placed_s >= 0
    network_s = np.where(is_placed, finished_s - placed_s - sum(stages_s), 0.0)
    load_s, preprocess_s, infer_s, postprocess_s = stages_s
    tenants, models = _parts(rows.model)
    return {
        "tenant": tenants,
        "model": models,
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


def _answers(rows: FinishedRequests) -> dict[str, Any]:
    """The columns that `ANSWER_SCHEMA` adds."""
    found = [rows.answers.get(at) for at in range(len(rows))]
    return {
        name: [None if each is None else getattr(each, name) for each in found]
        for name in ANSWER_SCHEMA.names[len(RECORD_SCHEMA) :]
    }


def _floats(values: Sequence[float]) -> Floats:
    return np.array(values, np.float64)


def _array(values: Any, type_: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    return _encoded(values) if pa.types.is_dictionary(type_) else pa.array(values, type_)


def _encoded(values: Sequence[str | None]) -> pa.DictionaryArray:
    """Names as codes of a dictionary, in the order in which they first appear."""
    names = [each for each in dict.fromkeys(values) if each is not None]
    known: dict[str | None, int] = {None: -1, **{name: at for at, name in enumerate(names)}}
    places = np.fromiter(map(known.__getitem__, values), np.int32, len(values))
    return pa.DictionaryArray.from_arrays(
        pa.array(places, mask=places < 0), pa.array(names, pa.string())
    )


def _parts(models: Sequence[ModelName]) -> list[pa.DictionaryArray]:
    """Tenants and names, computed once per model rather than once per row."""
    known = {model: at for at, model in enumerate(dict.fromkeys(models))}
    places = pa.array(np.fromiter(map(known.__getitem__, models), np.int32, len(models)))
    encoded = [_encoded([model[part] for model in known]) for part in range(2)]
    return [
        pa.DictionaryArray.from_arrays(each.indices.take(places), each.dictionary)
        for each in encoded
    ]
