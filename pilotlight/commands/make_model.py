"""`make-model` makes a folder with random weights."""

import os
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from common.child_process import python_environment
from pilotlight.commands import flags
from pilotlight.errors import InvalidInput, PilotlightError, check_extra
from pilotlight.output import Output
from pilotlight.sample_models import make_model_command
from pilotlight.sample_models.architectures import ARCHITECTURES

app = typer.Typer()


@app.command("make-model")
def make_model(
    kind: Annotated[
        str, typer.Argument(help="Architecture, such as t5-small, bert-base, vit-base, tiny-t5.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write the model to.")],
    *,
    json_: flags.Json = False,
) -> None:
    """Write a model of a published architecture with random weights, without any download."""
    check_extra("platform", "torch")
    output = Output(json_)
    if kind not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise InvalidInput([f"KIND must be one of {known}, was {kind!r}"])
    output.note(f"making {kind} in {folder}: a large model takes about a minute")
    made = subprocess.run(
        make_model_command(kind, folder),
        env=python_environment(os.environ),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if made.returncode:
        raise PilotlightError(f"cannot make {kind} in {folder}; the reason is above")
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    output.result(
        {"kind": kind, "folder": str(folder), "bytes": size}, made.stdout.strip().splitlines()
    )
