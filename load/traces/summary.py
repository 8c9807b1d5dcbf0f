"""Summary of a trace: number of arrivals, last arrival time, arrivals per model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from load.traces.batches import full_names, times_s

if TYPE_CHECKING:
    from load.schema import Trace


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
