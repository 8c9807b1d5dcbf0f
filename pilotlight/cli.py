"""The command line: collects the verbs of `commands` and maps errors to exit statuses.

0: done. 1: failed; standard error says why. 2: the input is wrong, or a platform runs already;
nothing was changed.
"""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from pilotlight.command_help import complete_names
from pilotlight.commands import (
    apply,
    autoscaler,
    console,
    convert,
    demo,
    describe,
    doctor,
    forecast,
    get,
    import_objects,
    kubernetes,
    logs,
    make_model,
    place,
    predict,
    profile,
    sneakpeek,
    up,
    workflow,
)
from pilotlight.commands.experiments import experiment
from pilotlight.commands.load_runs import load, report
from pilotlight.commands.simulation import simulate
from pilotlight.commands.top import top
from pilotlight.errors import AlreadyRunning, Interrupted, InvalidInput, PilotlightError
from pilotlight.output import Output

app = typer.Typer(
    name="pilotlight",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_PANELS = {
    "Serve models": (up, apply, import_objects, predict, get),
    "See what happens": (top, console, describe, logs, autoscaler, demo),
    "Prepare models and applications": (profile, make_model, convert, sneakpeek, workflow),
    "Load, simulate, plan": (load, report, simulate, experiment, forecast, place),
    "Kubernetes": (kubernetes, doctor),
}
"""Modules of commands by the title that `--help` lists them under."""
for _title, _modules in _PANELS.items():
    for _verbs in _modules:
        for _command in (*_verbs.app.registered_commands, *_verbs.app.registered_groups):
            _command.rich_help_panel = _title
        app.add_typer(_verbs.app, rich_help_panel=_title)
complete_names(app)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"pilotlight {version('pilotlight')}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Serverless model inference for KServe and Knative: a whole platform on one machine."""


def main() -> int:
    """Run the command line; returns the exit status, or raises SystemExit with it."""
    output = Output(as_json="--json" in sys.argv[1:])
    try:
        app(prog_name="pilotlight")
    except InvalidInput as error:
        kept = "earlier results are kept" if error.partial_result else "nothing was changed"
        output.failure(f"invalid input; {kept}", error.problems, partial=error.partial_result)
        return 2
    except AlreadyRunning as error:
        output.failure(str(error))
        return 2
    except Interrupted as error:
        output.note("interrupted; everything that this command started is stopped")
        return 128 + error.signal_number
    except PilotlightError as error:
        output.failure(str(error), partial=error.partial_result)
        return 1
    return 0
