"""Finished requests of a simulation by column, and as record batches of `RECORD_SCHEMA`.

The columns are lists of plain values: an object per request would slow the garbage collector.
Derived columns are computed per batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from gateway.routing.decision import Reason
from load.report.run import Floats
from load.schema import ANSWER_SCHEMA, RECORD_SCHEMA
from load.simulator.pods.simulated_request import SimulatedRequest
from registry.domain.model import ModelName


@dataclass(frozen=True, slots=True)
class Answer:
    """Outcome of a request to an application; None where unknown."""

    application: ModelName
    variant: str | None
    label: int | None
    prediction: int | None
    expected_utility: float | None
    utility: float | None


class FinishedRequests:
    """One entry per request in each column. Times in seconds of the run."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start new lists; lists that a caller has taken keep their values."""
        self.request_id: list[str] = []
        self.model: list[ModelName] = []
        self.policy: list[str | None] = []
        self.arrival_s: list[float] = []
        self.placed_s: list[float] = []
        """Time at which the request was sent to its entry pod; negative if it was not sent."""
        self.first_s: list[float] = []
        self.finished_s: list[float] = []
        self.status: list[int] = []
        self.reason: list[Reason | str | None] = []
        self.error: list[str | None] = []
        self.entry_pod: list[str | None] = []
        self.predict_pod: list[str | None] = []
        self.start: list[str | None] = []
        self.load_s: list[float] = []
        self.preprocess_s: list[float] = []
        self.infer_s: list[float] = []
        self.postprocess_s: list[float] = []
        self.input_size: list[int] = []
        self.output_size: list[int] = []
        self.deadline_s: list[float | None] = []
        """Counted from the arrival."""
        self.answers: dict[int, Answer] = {}
        """Of requests to applications, by row."""

    def __len__(self) -> int:
        return len(self.request_id)

    def set_answer(self, answer: Answer) -> None:
        """Set the answer of the request added last, which was to an application."""
        self.model[-1] = answer.application
        self.answers[len(self.model) - 1] = answer

    def add(
        self,
        request: SimulatedRequest,
        *,
        finished_s: float,
        status: int,
        reason: Reason | str | None,
        error: str | None,
        deadline_s: float | None,
    ) -> None:
        arrival = request.arrival
        entry = predict = start = None
        if request.placed_s >= 0:
            entry, predict, start = request.entry.name, request.predict.name, request.start
            if start == "warm" and request.awaited_tier:
                start = request.awaited_tier
        self.request_id.append(arrival.id)
        self.model.append(arrival.model)
        self.policy.append(request.policy)
        self.arrival_s.append(arrival.arrival_s)
        self.placed_s.append(request.placed_s)
        self.first_s.append(request.first_token_s if request.first_token_s >= 0 else finished_s)
        self.finished_s.append(finished_s)
        self.status.append(status)
        self.reason.append(reason)
        self.error.append(error)
        self.entry_pod.append(entry)
        self.predict_pod.append(predict)
        self.start.append(start or None)
        self.load_s.append(request.load_s)
        self.preprocess_s.append(request.preprocess_s)
        self.infer_s.append(request.infer_s)
        self.postprocess_s.append(request.postprocess_s)
        self.input_size.append(request.input_size)
        self.output_size.append(request.output_size)
        self.deadline_s.append(deadline_s)


class RecordBuffer:
    """Finished requests until they are taken as a batch."""

    def __init__(self, *, has_answers: bool = False) -> None:
        """`has_answers`: the run has applications, whose answers add columns."""
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
    """The schema's columns that follow from others."""
    arrival_s, finished_s, placed_s = map(_floats, (rows.arrival_s, rows.finished_s, rows.placed_s))
    stages_s = [
        _floats(each) for each in (rows.load_s, rows.preprocess_s, rows.infer_s, rows.postprocess_s)
    ]
    is_placed = placed_s >= 0
    network_s = np.where(is_placed, finished_s - placed_s - sum(stages_s), 0.0)
    load_s, preprocess_s, infer_s, postprocess_s = stages_s
    tenants, models = _tenants_and_models(rows.model)
    return {
        "tenant": tenants,
        "model": models,
        "scheduled_s": arrival_s,
        "sent_s": arrival_s,
        "first_byte_s": _floats(rows.first_s),
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


def _tenants_and_models(models: Sequence[ModelName]) -> list[pa.DictionaryArray]:
    """Columns of tenants and of models; encoded once per model, not per row."""
    known = {model: at for at, model in enumerate(dict.fromkeys(models))}
    places = pa.array(np.fromiter(map(known.__getitem__, models), np.int32, len(models)))
    encoded = [_encoded([model[part] for model in known]) for part in range(2)]
    return [
        pa.DictionaryArray.from_arrays(each.indices.take(places), each.dictionary)
        for each in encoded
    ]
