"""Help of commands: plain text in narrow terminals, where tables cut names of options."""

import shutil
from typing import Any, Final

from typer import Typer
from typer.core import TyperCommand

_TABLE_COLUMNS: Final = 110
"""Width that the table of `up` needs for its longest option and environment variable."""


class Command(TyperCommand):
    """A command with complete names in its help, whatever the width of the terminal."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As a table if it fits."""
        if shutil.get_terminal_size().columns < _TABLE_COLUMNS:
            self.rich_markup_mode = None
        super().format_help(ctx, formatter)


def complete_names(app: Typer) -> None:
    """Let all commands of the application, and of its groups, be of this kind."""
    for command in app.registered_commands:
        if command.cls is TyperCommand:
            command.cls = Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            complete_names(group.typer_instance)
