"""`report`: reads the runs, and says what was written."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from load.errors import ReportError
from load.report.run import Run
from load.report.run_file import read_run
from pilotlight.commands import flags
from pilotlight.errors import InvalidInput
from pilotlight.output import Output, progress_bar
from research.report.comparison import write_report

MAX_RUNS: Final = 8

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
    printer = Output(json_)
    read = read_runs(runs)
    for run in read:
        if run.was_interrupted:
            printer.note(f"{run.name} was interrupted: its file ends at the interruption")
    with progress_bar("report") as update:
        written = write_report(read, output.expanduser(), update)
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


def read_runs(given: Sequence[str]) -> list[Run]:
    """The runs given as `FILE` or `NAME=FILE`. Raises InvalidInput with all problems."""
    problems = []
    if not 1 <= len(given) <= MAX_RUNS:
        problems.append(f"a report compares 1 to {MAX_RUNS} runs, got {len(given)}")
    named = [_named(text) for text in given]
    for name in sorted({name for name, _ in named}):
        paths = [str(path) for each, path in named if each == name]
        if len(paths) > 1:
            problems.append(
                f"{len(paths)} runs have the name {name!r}: {', '.join(paths)}; "
                "give them different names with NAME=FILE"
            )
    runs = []
    for name, path in [] if problems else named:
        try:
            runs.append(read_run(path, name))
        except ReportError as error:
            problems.append(str(error))
    if problems:
        raise InvalidInput(problems)
    return runs


def _named(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if equals and name and not os.path.exists(text):  # Path.exists raises OSError for long names
        return name.encode(errors="replace").decode(), Path(path).expanduser()
    whole = Path(text).expanduser()
    return whole.name.removesuffix(".parts").removesuffix(".parquet") or whole.name, whole
