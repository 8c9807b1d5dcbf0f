"""`describe`: all that is known of one object."""

import typer

from pilotlight.commands.get import add_kinds, describing

app = typer.Typer(name="describe", no_args_is_help=True, help="Show one object in detail.")
add_kinds(app, describing, "name")
