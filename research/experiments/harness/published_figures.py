"""Published figures by their number in a CSV file of the data folder."""

import csv
from collections.abc import Mapping

from research.experiments.harness.experiment import ExperimentError, Settings


def published_figures(settings: Settings, file: str) -> Mapping[int, float]:
    """Value by number, without figures that are ranges; empty if the file does not exist.

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


def absent_note(file: str) -> str:
    """The note of a result without published figures."""
    return f"the thesis's figures are left out: PILOTLIGHT_DATA names no folder with {file}"
