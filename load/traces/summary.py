"""A trace in a few numbers: how many arrivals, until when, for which models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from load.traces.batches import times
from load.traces.name_columns import Functions

if TYPE_CHECKING:
    from load.schema import Trace


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """What one reading of a trace shows; `models` has arrivals by full name, `tenant/model`."""

    arrivals: int
    last_s: float
    models: dict[str, int]

    @property
    def mean_rps(self) -> float:
        """Arrivals per second until the last one; 0 where all are at the start."""
        return self.arrivals / self.last_s if self.last_s > 0.0 else 0.0


def summarise(trace: Trace) -> TraceSummary:
    """Read the trace once, in flat memory but for the names of its models."""
    functions = Functions()
    counts = np.zeros(0, np.int64)
    last_s = 0.0
    for batch in trace:
        own = functions.of(batch)
        counts = np.pad(counts, (0, len(functions) - len(counts)))
        counts += np.bincount(own, minlength=len(functions))
        last_s = float(times(batch)[-1]) if batch.num_rows else last_s
    models = dict(zip(functions.names(), counts.tolist(), strict=True))
    return TraceSummary(int(counts.sum()), last_s, models)
