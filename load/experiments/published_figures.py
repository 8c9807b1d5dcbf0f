"""Figures of the literature, by their number in a file of the data folder."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from load.experiments.errors import ExperimentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from load.experiments.experiment import Settings


def reported_figures(settings: Settings, file: str) -> Mapping[int, float]:
    """Value by number; none where the file is absent, nor of claims whose value is a range.

    Raises ExperimentError for a file without the columns.
    """
    path = settings.file(file)
    if path is None:
        return {}
    found = {}
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                try:
                    found[int(row["id"])] = float(row["value"])
                except ValueError:
                    continue
    except (KeyError, TypeError, csv.Error, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path}: must have the columns id and value: {error}") from error
    return found


def absent(file: str) -> str:
    """What is said where the file is absent."""
    return (
        f"the thesis's figures are left out: no {file} was found; PILOTLIGHT_DATA is to name its "
        "folder"
    )
