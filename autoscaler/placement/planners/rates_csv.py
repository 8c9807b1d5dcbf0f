"""Reads workloads from CSV: model, rps, slo_ms and, if given, max_batch_size."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Final

from autoscaler.placement.planners.problem import InvalidPlacementInput, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable

COLUMNS: Final = ("model", "rps", "slo_ms")


def read_workloads(lines: Iterable[str], *, file: str) -> list[Workload]:
    """The workloads in the order of the file; raises InvalidPlacementInput with all mistakes."""
    reader = csv.DictReader(lines)
    if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
        raise InvalidPlacementInput([f"{file}: must have the columns {', '.join(missing)}"])
    workloads, problems = [], []
    for row in reader:
        try:
            largest = row.get("max_batch_size")
            workloads.append(
                Workload(
                    row["model"].strip(),
                    float(row["rps"]),
                    float(row["slo_ms"]) / 1000,
                    int(largest) if largest else None,
                )
            )
        except (AttributeError, TypeError, ValueError):
            shown = ", ".join(f"{name}={row[name]!r}" for name in COLUMNS)
            problems.append(f"{file}:{reader.line_num}: must hold numbers, was {shown}")
    if problems:
        raise InvalidPlacementInput(problems)
    return workloads
