"""The command line: collects the verbs of `commands` and maps errors to exit statuses.

0: done. 1: failed; standard error says why. 2: the input is wrong, or a platform runs already;
nothing was changed.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer

from pilotlight.command_help import complete_names
from pilotlight.errors import AlreadyRunning, Interrupted, InvalidInput, PilotlightError
from pilotlight.output import Output

_PANELS: Final = {
    "Serve models": ("up", "apply", "import_objects", "predict", "get"),
    "See what happens": ("top.top", "console", "describe", "logs", "autoscaler", "demo"),
    "Prepare models and applications": (
        "profile", "make_model", "convert", "sneakpeek", "workflow"
    ),
    "Load, simulate, plan": (
        "load_runs.load", "load_runs.report", "simulation.simulate", "experiments.experiment",
        "forecast", "place",
    ),
    "Kubernetes": ("kubernetes", "doctor"),
}  # fmt: skip
"""Modules of commands by the title that `--help` lists them under."""
_VERBS: Final = {
    "up": ("up", "down"),
    "apply": ("apply", "delete"),
    "import_objects": ("import",),
    "predict": ("predict", "explain"),
    "make_model": ("make-model",),
    "kubernetes": ("controller", "scale"),
}
"""The verbs of modules whose name is not their only verb."""


def create_app(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command line; with the verb that the arguments begin with alone, if they do.

    To import all modules takes half a second more.
    """
    app = typer.Typer(
        name="pilotlight",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    verb = next(iter(arguments), "")
    is_known = any(verb in _verbs_of(name) for names in _PANELS.values() for name in names)
    for title, names in _PANELS.items():
        for name in names:
            if not is_known or verb in _verbs_of(name):
                _add(app, importlib.import_module(f"pilotlight.commands.{name}").app, title)
    complete_names(app)
    return app


def _verbs_of(module: str) -> tuple[str, ...]:
    return _VERBS.get(module, (module.rpartition(".")[2],))


def _add(app: typer.Typer, commands: Any, title: str) -> None:
    for command in (*commands.registered_commands, *commands.registered_groups):
        command.rich_help_panel = title
    app.add_typer(commands, rich_help_panel=title)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"pilotlight {version('pilotlight')}")
        raise typer.Exit


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
        create_app(sys.argv[1:])(prog_name="pilotlight")
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
