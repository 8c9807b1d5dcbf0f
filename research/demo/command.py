"""`demo`: the main job of the platform, and the workloads of Liu 2025."""

from typing import Annotated

import typer

from pilotlight.commands import flags
from pilotlight.errors import check_extra
from pilotlight.output import Output
from pilotlight.state_dir import StateDir

app = typer.Typer()


@app.command()
def demo(
    *,
    full: Annotated[
        bool, typer.Option("--full", help="Run Liu's workloads as long as the thesis does: slower.")
    ] = False,
    home: flags.Home = None,
    json_: flags.Json = False,
) -> None:
    """Start a platform, send requests to the samples, run Liu's workloads, stop."""
    check_extra("all", "torch")
    from research.demo.runner import run_demo  # takes 30 ms: not for all commands

    run_demo(StateDir.of(home), Output(json_), full=full)
