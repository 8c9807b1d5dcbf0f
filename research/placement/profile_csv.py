"""Reads profiles from CSV, with the columns of Elvinger 2024, table A.1."""

import csv
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from autoscaler.placement.problem import WHOLE_PCT, BatchPoint, InvalidPlacementInput, ModelProfile

PROFILE_COLUMNS: Final = ("model", "batch_size", "latency_s", "memory_pct")
_COMPUTE: Final = (
    "achieved_occupancy_pct",
    "wavg_achieved_occupancy_pct",
    "wavg_sm_utilization_pct",
)
_OPTIONAL: Final = ("throughput_rps", *_COMPUTE)
_UNCERTAIN: Final = "uncertain"


def read_profiles(lines: Iterable[str], *, kind: str, file: str) -> tuple[ModelProfile, ...]:
    """The profiles of a file by model, all on one kind; raises InvalidPlacementInput.

    A column `accelerator`, if there is one, names the kind instead.
    """
    reader = csv.DictReader(lines)
    if missing := [name for name in PROFILE_COLUMNS if name not in (reader.fieldnames or ())]:
        raise InvalidPlacementInput(
            [
                f"{file}: must have the columns {', '.join(missing)}; beside"
                f" {', '.join(PROFILE_COLUMNS)} it may have {', '.join(_OPTIONAL)}, accelerator and"
                " quality"
            ]
        )
    points: defaultdict[tuple[str, str], list[BatchPoint]] = defaultdict(list)
    problems: list[str] = []
    for row in reader:
        if row.get("quality") == _UNCERTAIN:
            continue
        try:
            points[row["model"], row.get("accelerator") or kind].append(_point(row))
        except (TypeError, ValueError, ZeroDivisionError):
            named = [name for name in (*PROFILE_COLUMNS, *_OPTIONAL) if name in row]
            shown = ", ".join(f"{name}={row[name]!r}" for name in named)
            problems.append(f"{file}:{reader.line_num}: must hold numbers, was {shown}")
    if problems:
        raise InvalidPlacementInput(problems)
    return tuple(
        ModelProfile(model, where, tuple(sorted(rows, key=lambda each: each.batch_size)))
        for (model, where), rows in sorted(points.items())
    )


def _point(row: dict[str, str]) -> BatchPoint:
    batch_size, latency_s = int(row["batch_size"]), float(row["latency_s"])
    throughput_rps = row["throughput_rps"] if "throughput_rps" in row else batch_size / latency_s
    compute = (float(row.get(name, WHOLE_PCT)) for name in _COMPUTE)
    return BatchPoint(
        batch_size, latency_s, float(throughput_rps), float(row["memory_pct"]), *compute
    )
