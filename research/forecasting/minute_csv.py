"""Reads arrivals per minute from CSV or CSV.gz.

Either `minute,model,count` without rows of no arrivals, or one column per model
(`minute,R1,R2,...`), where an empty cell is 0.
"""

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from autoscaler.forecasting.history import ForecastingError, Integers

_MAX_CELLS: Final = 200_000_000


class BadArrivalTrace(ForecastingError):
    """A file that does not hold arrivals per minute."""


@dataclass(frozen=True, slots=True)
class MinuteTrace:
    models: tuple[str, ...]
    counts: Integers
    """(models, minutes), from minute 0 on."""


def read_minutes(path: Path) -> MinuteTrace:
    """Raises BadArrivalTrace with file and line."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            rows = list(_cells(csv.reader(file), path))
    except (OSError, UnicodeDecodeError, EOFError, csv.Error) as error:
        raise BadArrivalTrace(f"cannot read {path}: {error}") from error
    if not rows:
        raise BadArrivalTrace(f"{path} has no arrivals")
    models = tuple(sorted({model for _, model, _ in rows}))
    minutes = max(minute for minute, _, _ in rows) + 1
    if len(models) * minutes > _MAX_CELLS:
        raise BadArrivalTrace(
            f"{path}: models x minutes must be at most {_MAX_CELLS}, were {len(models)} x {minutes}"
        )
    places = {model: row for row, model in enumerate(models)}
    counts = np.zeros((len(models), minutes), dtype=np.uint32)
    at = np.array([(places[model], minute) for minute, model, _ in rows])
    np.add.at(counts, (at[:, 0], at[:, 1]), np.array([count for _, _, count in rows], np.uint32))
    return MinuteTrace(models=models, counts=counts)


def _cells(lines: Iterator[list[str]], path: Path) -> Iterator[tuple[int, str, int]]:
    header = next(lines, [])
    if not header or header[0] != "minute" or len(header) < 2:
        raise BadArrivalTrace(
            f"{path} must start with minute,model,count or minute,NAME,..., was {header}"
        )
    is_long = header == ["minute", "model", "count"]
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise BadArrivalTrace(f"{path}:{number} must have {len(header)} cells, had {len(line)}")
        where = f"{path}:{number}"
        minute = _whole(line[0], where, maximum=10_000_000)
        pairs: Sequence[tuple[str, str]] = (
            [(line[1], line[2])] if is_long else list(zip(header[1:], line[1:], strict=True))
        )
        for model, count in pairs:
            if count:
                yield minute, model, _whole(count, where, maximum=10**9)


def _whole(text: str, where: str, *, maximum: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= maximum:
        raise BadArrivalTrace(f"{where}: must be a whole number from 0 to {maximum}, was {text!r}")
    return value
