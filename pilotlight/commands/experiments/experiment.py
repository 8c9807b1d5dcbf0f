"""The command `experiment`. Its libraries come with an extra and are imported when it runs."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pilotlight.commands import flags
from pilotlight.commands.completion import complete_experiment
from pilotlight.errors import requires_extra
from pilotlight.output import Output
from pilotlight.sample_models.samples import prepare_applications
from pilotlight.state_dir import StateDir

app = typer.Typer()


@app.command()
def experiment(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the experiment. Default: list all experiments.",
            autocompletion=complete_experiment,
        ),
    ] = None,
    *,
    live: Annotated[
        bool,
        typer.Option(
            "--live/--simulated-only",
            help="Run the live parts on a platform of this machine as well, or only simulate.",
        ),
    ] = True,
    seed: Annotated[
        list[int],
        typer.Option(min=0, help="Seed. Repeat for several. Default: the experiment's own."),
    ] = [],  # noqa: B006 - typer copies it
    model: Annotated[
        list[str],
        typer.Option(
            help="Model of liu-simple --live: t5-small (default), t5-base or t5-large. Repeat "
            "for several. Missing models are made: 0.9 GB for t5-base, 3 GB for t5-large."
        ),
    ] = [],  # noqa: B006 - typer copies it
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a small part of the experiment, within seconds.")
    ] = False,
    half: Annotated[
        str | None,
        typer.Option(
            help="Cells of regret: choose (for choosing constants), report (for reporting) or "
            "both (default)."
        ),
    ] = None,
    cells: Annotated[
        int | None, typer.Option(min=1, help="Number of cells of regret. Default: its own.")
    ] = None,
    cell: Annotated[
        list[int],
        typer.Option(min=0, help="Number of a cell of regret. Repeat for several."),
    ] = [],  # noqa: B006 - typer copies it
    policy: Annotated[
        list[str],
        typer.Option(help="Policy that regret runs. Repeat for several. Default: all."),
    ] = [],  # noqa: B006 - typer copies it
    reuse: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="cells.parquet of an earlier run of regret, for the policies that do not run.",
        ),
    ] = None,
    processes: flags.Processes = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for tables and plots.")
    ] = Path("experiments"),
    overwrite: flags.Overwrite = False,
    home: flags.Home = None,
    json_: flags.Json = False,
) -> None:  # fmt: skip
    """Run an experiment of the documentation: its tables beside the published figures."""
    with requires_extra("load"):
        from load.experiments.experiments import EXPERIMENTS
        from load.experiments.harness.experiment import CellSelection, Settings
        from pilotlight.commands.experiments.runs import list_experiments, run_experiment
        from pilotlight.live_experiments.live_platform import LocalLivePlatform

    output = Output(json_)
    if name is None:
        list_experiments(output)
        return
    settings = Settings(
        seeds=tuple(seed),
        is_quick=quick,
        processes=processes or os.cpu_count() or 1,
        live=LocalLivePlatform(StateDir.of(home), output) if live else None,
        models=tuple(model),
        cells=CellSelection(half or "both", cells, tuple(cell), tuple(policy), reuse),
    )
    if name in EXPERIMENTS and EXPERIMENTS[name].needs_applications:
        made = prepare_applications(StateDir.of(home).root, output)
        settings = replace(settings, applications=made)
    run_experiment(name, settings, output, out=out, overwrite=overwrite)
