"""When requests arrive: minutes of a public trace, mapped to workflows in turn, and scaled."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from load.experiments.workflows.applications import APPLICATIONS, GENERATORS
from load.experiments.workflows.constants import MINUTES

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from load.experiments.workflows.applications import Generators, WorkflowRequest

FILE: Final = "gentd26_per_minute.csv.gz"
_FIRST_MINUTE: Final = 227 * 120
"""Begin of the trace's two busiest hours."""


def arrivals(
    file: Path, application: str, rate_per_s: float, rng: random.Random, minutes: int = MINUTES,
    *, changes_at_s: float | None = None, generators: Generators = GENERATORS,
) -> list[tuple[float, WorkflowRequest]]:  # fmt: skip
    """Times and requests; `rate_per_s` on average, by minute and workflow as in the trace.

    From `changes_at_s` on GILL's requests are doubled and those of others halved (section 8.2).
    """
    workflows = APPLICATIONS[application]
    counts = _counts(file, len(workflows), minutes)
    total = sum(counts.values())
    found = []
    for (minute, workflow), count in sorted(counts.items()):
        expected = rate_per_s * minutes * 60 * count / total
        if changes_at_s is not None and minute * 60 >= changes_at_s:
            expected *= 2.0 if workflows[workflow] == "gill" else 0.5
        number = int(expected) + (rng.random() < expected % 1)
        for _ in range(number):
            time_s = (minute + rng.random()) * 60
            found.append((time_s, generators[workflows[workflow]](rng)))
    return sorted(found, key=lambda each: each[0])


def _counts(file: Path, workflows: int, minutes: int) -> dict[tuple[int, int], int]:
    """Requests by minute and position of the workflow; models are mapped in order of names."""
    rows = []
    with gzip.open(file, "rt") as lines:
        for row in csv.DictReader(lines):
            minute = int(row["minute"]) - _FIRST_MINUTE
            if 0 <= minute < minutes:
                rows.append((minute, row["model"], int(row["count"])))
    positions = {name: at % workflows for at, name in enumerate(sorted({m for _, m, _ in rows}))}
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for minute, model, count in rows:
        counts[minute, positions[model]] += count
    return counts
