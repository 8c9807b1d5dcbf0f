"""Reads profiles from a CSV file with the columns of Elvinger 2024, table A.1.

Rows whose quality is `uncertain` are left out.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from autoscaler.placement.planners.problem import (
    BatchPoint,
    InvalidPlacementInput,
    ModelProfile,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

COLUMNS: Final = (
    "model", "batch_size", "latency_s", "throughput_rps", "memory_pct",
    "achieved_occupancy_pct", "wavg_achieved_occupancy_pct", "wavg_sm_utilization_pct",
)  # fmt: skip
_UNCERTAIN: Final = "uncertain"


def read_profiles(lines: Iterable[str], *, kind: str, file: str) -> tuple[ModelProfile, ...]:
    """The profiles of a file by model, all on one kind; raises InvalidPlacementInput.

    A column `accelerator`, if there is one, names the kind instead.
    """
    reader = csv.DictReader(lines)
    if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
        raise InvalidPlacementInput([f"{file}: must have the columns {', '.join(missing)}"])
    points: defaultdict[tuple[str, str], list[BatchPoint]] = defaultdict(list)
    problems: list[str] = []
    for row in reader:
        if row.get("quality") == _UNCERTAIN:
            continue
        try:
            points[row["model"], row.get("accelerator") or kind].append(_point(row))
        except (TypeError, ValueError):
            shown = ", ".join(f"{name}={row[name]!r}" for name in COLUMNS)
            problems.append(f"{file}:{reader.line_num}: must hold numbers, was {shown}")
    if problems:
        raise InvalidPlacementInput(problems)
    return tuple(
        ModelProfile(model, where, tuple(sorted(rows, key=lambda each: each.batch_size)))
        for (model, where), rows in sorted(points.items())
    )


def _point(row: dict[str, str]) -> BatchPoint:
    _, batch_size, *measured = (row[name] for name in COLUMNS)
    return BatchPoint(int(batch_size), *map(float, measured))
