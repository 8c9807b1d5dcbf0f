"""When requests arrive: minutes of a public trace, mapped to workflows in turn, and scaled.

GenTD26 is that trace's own application: its requests ask for the models of their minute.
"""

import csv
import gzip
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

from research.simulated_workflows.applications import (
    APPLICATIONS,
    GENERATORS,
    Generators,
    WorkflowRequest,
    gentd26,
)

FILE: Final = "gentd26_per_minute.csv.gz"
_FIRST_MINUTE: Final = 227 * 120
"""Begin of the trace's two busiest hours."""


def arrivals(
    file: Path,
    application: str,
    rate_per_s: float,
    rng: random.Random,
    minutes: int,
    *,
    changes_at_s: float | None = None,
    generators: Generators = GENERATORS,
) -> list[tuple[float, WorkflowRequest]]:
    """Times and requests; `rate_per_s` on average, by minute and workflow as in the trace.

    From `changes_at_s` on GILL's requests are doubled and those of others halved (section 8.2).
    """
    workflows = APPLICATIONS[application]
    counts = _counts(file, len(workflows), minutes)
    total = sum(models.total() for models in counts.values())
    found = []
    for (minute, workflow), models in sorted(counts.items()):
        name = workflows[workflow]
        expected = rate_per_s * minutes * 60 * models.total() / total
        if changes_at_s is not None and minute * 60 >= changes_at_s:
            expected *= 2.0 if name == "gill" else 0.5
        number = int(expected) + (rng.random() < expected % 1)
        for _ in range(number):
            time_s = (minute + rng.random()) * 60
            request = gentd26(rng, models) if name == "gentd26" else generators[name](rng)
            found.append((time_s, request))
    return sorted(found, key=lambda each: each[0])


def _counts(file: Path, workflows: int, minutes: int) -> dict[tuple[int, int], Counter[str]]:
    """Requests of each model, by minute and position of the workflow, in order of models' names."""
    rows = []
    with gzip.open(file, "rt") as lines:
        for row in csv.DictReader(lines):
            minute = int(row["minute"]) - _FIRST_MINUTE
            if 0 <= minute < minutes:
                rows.append((minute, row["model"], int(row["count"])))
    positions = {name: at % workflows for at, name in enumerate(sorted({m for _, m, _ in rows}))}
    counts: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for minute, model, count in rows:
        counts[minute, positions[model]][model] += count
    return counts
