"""The thesis's figures, by their number in `sigmaos_results.csv`; none where the file is absent."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Final

from load.experiments.errors import ExperimentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from load.experiments.experiment import Settings

FILE: Final = "sigmaos_results.csv"
ABSENT: Final = (
    f"the thesis's figures are left out: {FILE} is not in the folder that PILOTLIGHT_DATA names"
)


def thesis_figures(settings: Settings) -> Mapping[int, float]:
    """Value by number; claims whose value is a range are left out. Raises ExperimentError."""
    path = settings.file(FILE)
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
