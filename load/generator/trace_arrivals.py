"""Arrivals of a trace: a survey of the whole trace before a run, and each worker's share."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from itertools import count, takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from load.errors import GeneratorError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from load.schema import Trace

_CHUNK_ROWS: Final = 256
"""Rows converted to Python values at a time: a few tenths of a millisecond on the event loop."""


class TraceArrival(NamedTuple):
    row: int
    at_s: float
    tenant: str
    model: str
    input_size: int
    output_size: int
    deadline_s: float | None
    blocks: list[int] | None = None


class ModelAppearance(NamedTuple):
    """A model of a trace, and its first arrival."""

    tenant: str
    model: str
    arrival: int
    """Number of the first arrival, counted from 1."""
    at_s: float

    @property
    def name(self) -> str:
        """`tenant/model`."""
        return f"{self.tenant}/{self.model}"


@dataclass(frozen=True, slots=True)
class TraceSurvey:
    requests: int
    last_s: float
    models: tuple[ModelAppearance, ...]
    """In order of appearance."""


def survey(trace: Trace, duration_s: float | None) -> TraceSurvey:
    """Read a trace once. Raises GeneratorError if no request arrives before `duration_s`."""
    requests, last_s = 0, 0.0
    models: dict[tuple[str, str], ModelAppearance] = {}
    for batch in _before(trace, duration_s):
        at_s = batch.column("at_s").to_numpy()
        pairs = batch.select(["tenant", "model"]).to_pydict()
        for index, pair in enumerate(zip(pairs["tenant"], pairs["model"], strict=True)):
            if pair not in models:
                models[pair] = ModelAppearance(*pair, requests + index + 1, float(at_s[index]))
        requests += len(at_s)
        last_s = float(at_s[-1]) if len(at_s) else last_s
    if not requests:
        within = "" if duration_s is None else f" within --duration {duration_s:g} s"
        raise GeneratorError(f"the trace has no requests{within}")
    return TraceSurvey(requests, last_s, tuple(models.values()))


async def survey_in_thread(trace: Trace, duration_s: float | None) -> TraceSurvey:
    """`survey` in a thread, which ends with the next batch if this task is cancelled."""
    is_cancelled = threading.Event()
    batches = takewhile(lambda _: not is_cancelled.is_set(), trace)
    try:
        return await asyncio.to_thread(survey, batches, duration_s)
    finally:
        is_cancelled.set()


def worker_share(
    trace: Trace, *, worker: int, workers: int, duration_s: float | None
) -> Iterator[list[TraceArrival]]:
    """Every `workers`-th arrival from the `worker`-th on, in chunks, before `duration_s`."""
    first = 0
    for batch in _before(trace, duration_s):
        own = np.arange((worker - first) % workers, batch.num_rows, workers)
        for at in range(0, len(own), _CHUNK_ROWS):
            rows = own[at : at + _CHUNK_ROWS]
            columns = [column.to_pylist() for column in batch.take(rows).columns]
            numbers = count(first + int(rows[0]), workers)
            yield [TraceArrival(*row) for row in zip(numbers, *columns, strict=False)]
        first += batch.num_rows


def _before(trace: Trace, duration_s: float | None) -> Iterator[pa.RecordBatch]:
    """The batches with all arrivals before `duration_s`."""
    for batch in trace:
        at_s = batch.column("at_s").to_numpy()
        rows = len(at_s) if duration_s is None else int(np.searchsorted(at_s, duration_s))
        yield batch.slice(0, rows)
        if rows < len(at_s):
            return
