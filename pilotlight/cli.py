"""The command line: collects the verbs of `commands` and of plug-ins, maps errors to exit statuses.

0: done. 1: failed; standard error says why. 2: the input is wrong, or a platform runs already;
nothing was changed. Help is plain text, as kubectl's is.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer
from typer import Typer
from typer.core import TyperCommand, TyperGroup

from pilotlight.errors import AlreadyRunning, Interrupted, InvalidInput, PilotlightError
from pilotlight.output import Output
from registry.errors import PluginError
from registry.policy_names import PolicyNames

_PANELS: Final = {
    "Serve models": ("up", "key", "apply", "canary", "predict", "get"),
    "See what happens": ("logs", "doctor"),
    "Prepare models and applications": ("profile", "make_model", "workflow"),
    "Load, simulate": ("load", "simulate"),
    "Kubernetes": ("kubernetes",),
}
"""Modules of commands by the title that `--help` lists them under."""
_VERBS: Final = {
    "up": ("up", "down"),
    "apply": ("apply", "delete"),
    "canary": ("promote", "rollback"),
    "predict": ("predict", "explain"),
    "make_model": ("make-model",),
    "get": ("get", "describe"),
    "logs": ("logs", "autoscaler"),
    "kubernetes": ("controller", "scale"),
}
"""The verbs of modules whose name is not their only verb."""
_PLUGINS: Final = PolicyNames("pilotlight.commands")
"""The group of entry points whose names are verbs, and whose objects are Typer applications."""


def create_app(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command line; with the verb that the arguments begin with alone, if they do.

    To import all modules takes half a second more.
    """
    app = typer.Typer(
        name="pilotlight",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    verb = next(iter(arguments), "")
    is_known = any(verb in _verbs_of(name) for names in _PANELS.values() for name in names)
    plugins = () if is_known else tuple(_PLUGINS)
    is_plugin = verb in plugins
    for title, names in _PANELS.items():
        for name in names:
            if verb in _verbs_of(name) or not (is_known or is_plugin):
                _add(app, importlib.import_module(f"pilotlight.commands.{name}").app, title)
    for plugin in plugins:
        if plugin == verb or not is_plugin:
            try:
                _add(app, _commands_of(plugin), "Plug-ins")
            except PluginError as error:
                if is_plugin:
                    raise
                Output().note(f"left out: {error}")
    complete_names(app)
    return app


def _verbs_of(module: str) -> tuple[str, ...]:
    return _VERBS.get(module, (module.rpartition(".")[2],))


def _commands_of(plugin: str) -> typer.Typer:
    """Raises PluginError."""
    commands = _PLUGINS.load(plugin)
    if not isinstance(commands, typer.Typer):
        raise PluginError(
            f"plug-in {plugin!r} (pilotlight.commands) must be a typer.Typer, was {commands!r}"
        )
    return commands


def _add(app: typer.Typer, commands: Any, title: str) -> None:
    if not commands.info.name:  # not a group, which is listed by its name
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
    except PluginError as error:
        output.failure(str(error))
        return 1
    return 0


_FEW: Final = 8
_SUMMARY: Final = 200
"""Characters of a command's summary in the help of its group."""


def words_of(command: Any) -> tuple[str, ...]:
    """Names of a command beside the one that help shows, as `get` has for each kind."""
    words: tuple[str, ...] = getattr(command.callback, "words", ())
    return tuple(word for word in words if word != command.name)


class Command(TyperCommand):
    """A command whose help lists its options by title."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Of the plain text: by title, those without one first."""
        titled: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                is_argument = param.param_type_name == "argument"
                title = "Arguments" if is_argument else "Options"
                title = getattr(param, "rich_help_panel", None) or title
                titled.setdefault(title, []).append(record)
        for title in sorted(titled, key=lambda each: ("Arguments", "Options", each).index(each)):
            with formatter.section(title):
                formatter.write_dl(titled[title])


class Group(TyperGroup):
    """A group, whose help lists its commands; a command may have more `words` than its name."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        named = super().get_command(ctx, cmd_name)
        others = (each for each in self.commands.values() if cmd_name in words_of(each))
        return named or next(others, None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """An unknown command of a group with a few: they are named."""
        if len(self.commands) <= _FEW and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command {args[0]!r}. There are: {', '.join(self.commands)}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """By title, as `kubectl --help` does."""
        titled: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            if not command.hidden:
                title = getattr(command, "rich_help_panel", None) or "Commands"
                row = (name, command.get_short_help_str(limit=_SUMMARY))
                titled.setdefault(title, []).append(row)
        for title, rows in titled.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def complete_names(app: Typer) -> None:
    """Let all commands of the application, and of its groups, be of these kinds."""
    app.info.cls = Group
    for command in app.registered_commands:
        if command.cls is TyperCommand:
            command.cls = Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            complete_names(group.typer_instance)
