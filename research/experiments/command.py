"""The verb `experiment`. Experiments are plug-ins: entry points of `pilotlight.experiments`."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Protocol

import typer

from pilotlight.commands import flags
from pilotlight.errors import InvalidInput, requires_extra
from pilotlight.output import Output
from registry.errors import PluginError
from registry.policy_names import PolicyNames

EXPERIMENTS: Final = PolicyNames("pilotlight.experiments")

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class ExperimentFlags:
    """What the user asked for; empty tuples and None: the experiment's own."""

    live: bool
    """Whether to run parts on a platform, too."""
    seeds: tuple[int, ...]
    models: tuple[str, ...]
    is_quick: bool
    half: str | None
    cells: int | None
    cell_numbers: tuple[int, ...]
    policies: tuple[str, ...]
    reused: Path | None
    processes: int
    out: Path
    overwrite: bool
    home: Path | None


class Experiment(Protocol):
    """What a plug-in offers."""

    @property
    def description(self) -> str:
        """One line."""
        ...

    def run_command(self, flags: ExperimentFlags, output: Output) -> None:
        """Run, print tables, write files. Raises PilotlightError."""
        ...


def _complete(incomplete: str) -> list[str]:
    return [name for name in EXPERIMENTS if name.startswith(incomplete)]


@app.command()
def experiment(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the experiment. Default: list all experiments.", autocompletion=_complete
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
            help="Cells of regret and arena: choose (for choosing constants), report (for "
            "reporting) or both (default)."
        ),
    ] = None,
    cells: Annotated[
        int | None, typer.Option(min=1, help="Number of cells. Default: the experiment's own.")
    ] = None,
    cell: Annotated[
        list[int], typer.Option(min=0, help="Number of a cell. Repeat for several.")
    ] = [],  # noqa: B006 - typer copies it
    policy: Annotated[
        list[str],
        typer.Option(
            help="Routing policy, a plug-in's as well, that regret runs (default: all) or that "
            "enters the arena beside all others. Repeat for several."
        ),
    ] = [],  # noqa: B006 - typer copies it
    reuse: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="cells.parquet of an earlier run, for routing policies that do not run.",
        ),
    ] = None,
    processes: flags.Processes = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for tables and plots.")] = Path(
        "experiments"
    ),
    overwrite: flags.Overwrite = False,
    home: flags.Home = None,
    json_: flags.Json = False,
) -> None:
    """Run an experiment of the documentation: its tables beside the published figures."""
    output = Output(json_)
    if name is None:
        _list(output)
        return
    if name not in EXPERIMENTS:
        raise InvalidInput([f"NAME must be one of {EXPERIMENTS}, was {name!r}"])
    asked = ExperimentFlags(
        live=live,
        seeds=tuple(seed),
        models=tuple(model),
        is_quick=quick,
        half=half,
        cells=cells,
        cell_numbers=tuple(cell),
        policies=tuple(policy),
        reused=reuse,
        processes=processes or os.cpu_count() or 1,
        out=out,
        overwrite=overwrite,
        home=home,
    )
    _load(name).run_command(asked, output)


def _list(output: Output) -> None:
    rows = [(name, _description(name)) for name in EXPERIMENTS]
    output.table(("NAME", "WHAT IT SHOWS"), rows)
    if output.as_json:
        output.result([{"name": name, "description": line} for name, line in rows])


def _description(name: str) -> str:
    """Of one that cannot be used: why."""
    try:
        return _load(name).description
    except PluginError as error:
        return str(error)


def _load(name: str) -> Experiment:
    """Raises PilotlightError and PluginError."""
    with requires_extra("load"):
        try:
            experiment: Experiment = EXPERIMENTS.load(name)
        except PluginError as error:
            if isinstance(error.__cause__, ModuleNotFoundError):
                raise error.__cause__ from None
            raise
    if not hasattr(experiment, "run_command") or not hasattr(experiment, "description"):
        raise PluginError(
            f"experiment {name!r} must have run_command and description, was {experiment!r}"
        )
    return experiment
