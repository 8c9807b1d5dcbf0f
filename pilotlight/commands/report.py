"""`report`: compare recorded runs in one HTML page. The libraries come with the extra `load`."""

from pathlib import Path
from typing import Annotated

import typer

from pilotlight.commands import flags
from pilotlight.errors import InvalidInput, PilotlightError, requires_extra
from pilotlight.output import Output, progress_bar

app = typer.Typer()


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="FILE or NAME=FILE")],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the page and the plots.")
    ] = Path("report"),
    json_: flags.Json = False,
) -> None:
    """Compare 1 to 8 runs: one self-contained HTML page, and a PNG file per plot."""
    with requires_extra("load"):
        from load.errors import BadOutput, BadRuns, ReportError
        from load.report.comparison import write_report
        from load.report.run_file import read_runs

    printer = Output(json_)
    try:
        read = read_runs(runs)
        for run in read:
            if run.was_interrupted:
                printer.note(f"{run.name} was interrupted: its file ends at the interruption")
        with progress_bar("report") as update:
            written = write_report(read, output.expanduser(), update)
    except BadRuns as error:
        raise InvalidInput(error.problems) from error
    except BadOutput as error:
        raise InvalidInput([str(error)]) from error
    except ReportError as error:
        raise PilotlightError(str(error)) from error
    printer.result(
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
