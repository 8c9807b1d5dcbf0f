"""`report`: compare runs in one HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilotlight.errors import InvalidInput, MissingExtra, PilotlightError
from pilotlight.output import progress_bar

try:
    from load.report.comparison import write_report
    from load.report.errors import BadOutput, BadRuns, ReportError
    from load.report.run_file import read_runs
except ModuleNotFoundError as error:
    raise MissingExtra(error, "load") from error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pilotlight.output import Output


def report(given: Sequence[str], folder: Path, output: Output) -> None:
    """Read the runs, draw, write; InvalidInput for files that are no runs."""
    try:
        runs = read_runs(given)
        for run in runs:
            if run.was_interrupted:
                output.note(f"{run.name} was interrupted: it holds the requests up to then")
        with progress_bar("report") as update:
            written = write_report(runs, folder.expanduser(), update)
    except BadRuns as error:
        raise InvalidInput(error.problems) from error
    except BadOutput as error:
        raise InvalidInput([str(error)]) from error
    except ReportError as error:
        raise PilotlightError(str(error)) from error
    output.result(
        {
            "page": str(written.page),
            "images": [str(path) for path in written.images],
            "left_out": {each.heading: each.why for each in written.left_out},
            "runs": written.summaries,
        },
        [
            str(written.page),
            *(f"left out: {each.heading}: {each.why}" for each in written.left_out),
        ],
    )
