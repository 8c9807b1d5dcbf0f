"""Arrivals of a trace: what a run will meet, and one worker's share of them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from itertools import count, takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from load.generator.errors import UnplayableTrace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from load.schema import Trace

_CHUNK: Final = 256
"""Rows turned into Python values at a time: a few tenths of a millisecond on the loop's thread."""


class TraceArrival(NamedTuple):
    """One row of a trace."""

    row: int
    at_s: float
    tenant: str
    model: str
    input_size: int
    output_size: int
    deadline_s: float | None


class ModelAppearance(NamedTuple):
    """A model of a trace, and where it is first asked for."""

    tenant: str
    model: str
    arrival: int
    """Counted from 1."""
    at_s: float

    @property
    def name(self) -> str:
        """`tenant/model`."""
        return f"{self.tenant}/{self.model}"


@dataclass(frozen=True, slots=True)
class TraceSurvey:
    """What a trace holds, as far as a run goes."""

    requests: int
    last_s: float
    models: tuple[ModelAppearance, ...]
    """In order of appearance."""


def survey(trace: Trace, duration_s: float | None) -> TraceSurvey:
    """Pass through a trace once. Raises BadTrace where it holds nothing to send."""
    requests, last_s = 0, 0.0
    models: dict[tuple[str, str], ModelAppearance] = {}
    for batch in trace:
        times = batch.column("at_s").to_numpy()
        rows = len(times) if duration_s is None else int(np.searchsorted(times, duration_s))
        part = batch.slice(0, rows)
        pairs = part.select(["tenant", "model"]).to_pydict()
        for index, pair in enumerate(zip(pairs["tenant"], pairs["model"], strict=True)):
            if pair not in models:
                models[pair] = ModelAppearance(*pair, requests + index + 1, float(times[index]))
        requests += rows
        last_s = float(times[rows - 1]) if rows else last_s
        if rows < len(times):
            break
    if not requests:
        within = "" if duration_s is None else f" within --duration {duration_s:g} s"
        raise UnplayableTrace(f"the trace holds no request{within}")
    return TraceSurvey(requests, last_s, tuple(models.values()))


async def survey_aside(trace: Trace, duration_s: float | None) -> TraceSurvey:
    """`survey` in a thread, which ends with the next batch where this is cancelled."""
    is_over = threading.Event()
    batches = takewhile(lambda _: not is_over.is_set(), trace)
    try:
        return await asyncio.to_thread(survey, batches, duration_s)
    finally:
        is_over.set()


def share(
    trace: Trace, *, worker: int, workers: int, duration_s: float | None
) -> Iterator[list[TraceArrival]]:
    """Every `workers`-th arrival from the `worker`-th on, in chunks, before `duration_s`."""
    first = 0
    for batch in trace:
        times = batch.column("at_s").to_numpy()
        rows = len(times) if duration_s is None else int(np.searchsorted(times, duration_s))
        mine = np.arange((worker - first) % workers, rows, workers)
        for at in range(0, len(mine), _CHUNK):
            indices = mine[at : at + _CHUNK]
            columns = [column.to_pylist() for column in batch.take(indices).columns]
            numbers = count(first + int(indices[0]), workers)
            yield [TraceArrival(*row) for row in zip(numbers, *columns, strict=False)]
        first += len(times)
        if rows < len(times):
            return
