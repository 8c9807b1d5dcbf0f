"""`sneakpeek train`: train the look at an application's data from labelled examples."""

import asyncio
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from pilotlight.commands import flags
from pilotlight.commands.kinds import parse_model_names
from pilotlight.commands.profile_application import examples_for
from pilotlight.commands.target import PlatformTarget, require_known
from pilotlight.errors import InvalidInput
from pilotlight.output import Output
from research.looks.training import train, write_sneakpeek
from variants.labelled_examples import LabelledExamples
from variants.look_files import ARRAYS, FACTS

_EVERY: int = 4
"""Without a validation file, each fourth example of a class validates."""

app = typer.Typer(
    name="sneakpeek",
    no_args_is_help=True,
    help="Train what guesses a request's class before an application's variant is chosen.",
)


@app.callback()
def _group() -> None:
    """Keeps `train` a verb of its own."""


@app.command("train")
@flags.addresses(*flags.REGISTRY)
def train_sneakpeek(
    target: PlatformTarget,
    output: Output,
    name: Annotated[str, typer.Argument(help="Application: NAME or NAMESPACE/NAME")],
    *,
    examples: Annotated[
        Path, typer.Option(help="Labelled examples: .npz or .safetensors with `labels`.")
    ],
    validation: Annotated[
        Path | None, typer.Option(help="Examples to profile on. Default: a quarter of each class.")
    ] = None,
    k: Annotated[int, typer.Option(min=1, max=100, help="Neighbours.")] = 5,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the trained files.")] = Path(
        "sneakpeek"
    ),
    namespace: flags.Namespace = None,
) -> None:
    """Train nearest neighbours on examples; write safetensors and JSON for `sneakPeek.uri`."""
    state = asyncio.run(target.cluster())
    [application] = parse_model_names([name], namespace)
    require_known([str(application)], [str(each) for each in state.applications])
    spec = state.applications[application]
    given = examples_for(spec, examples)
    if validation is None:
        rows, labels, held = _split(given)
    else:
        other = examples_for(spec, validation)
        rows, labels, held = given.features(), given.labels, (other.features(), other.labels)
    if held[0].shape[1] != rows.shape[1]:
        raise InvalidInput(
            [
                f"{validation}: rows have {held[0].shape[1]} features, those of {examples} "
                f"{rows.shape[1]}"
            ]
        )
    trained = train(rows, labels, held, classes=len(spec.classes), k=k, projection=given.projection)
    write_sneakpeek(
        out,
        trained,
        application=str(spec.name),
        classes=spec.classes,
        inputs=tuple(sorted(given.inputs)),
    )
    accuracy = float(np.trace(trained.confusion) / trained.confusion.sum())
    shape = trained.examples.vectors.shape
    output.result(
        {
            "application": str(spec.name),
            "folder": str(out),
            "k": trained.examples.k,
            "accuracy": accuracy,
            "examples": shape[0],
            "dimensions": shape[1],
        },
        [
            f"{out}/{ARRAYS}, {FACTS}: {shape[0]} examples of {shape[1]} dimensions, "
            f"k = {trained.examples.k}, accuracy {accuracy:.3f} on {len(held[1])} others"
        ],
    )


def _split(given: LabelledExamples) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Rows and labels to train on, and those to validate on."""
    held = np.zeros(len(given.labels), bool)
    for label in np.unique(given.labels):
        held[np.flatnonzero(given.labels == label)[_EVERY - 1 :: _EVERY]] = True
    rows = given.features()
    missing = sorted(set(given.labels.tolist()) - set(given.labels[held].tolist()))
    if missing:
        raise InvalidInput(
            [
                f"--examples: classes {', '.join(map(str, missing))} have fewer than {_EVERY} "
                "examples; give --validation"
            ]
        )
    return rows[~held], given.labels[~held], (rows[held], given.labels[held])
