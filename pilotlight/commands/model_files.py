"""`make-model`: a folder with random weights. `convert`: scikit-learn's pickle to skops or ONNX."""

import json
import os
import shutil
import subprocess
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from common.child_process import python_environment, python_module
from pilotlight.commands import flags
from pilotlight.errors import InvalidInput, PilotlightError, check_extra
from pilotlight.output import Output
from pilotlight.sample_models.architectures import ARCHITECTURES
from pilotlight.sample_models.samples import make_model_command, prepare_applications

APPLICATIONS = "demo-applications"
"""Trained variants and labelled examples of three applications, in a folder `applications`."""

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
    if kind == APPLICATIONS:
        target = prepare_applications(folder, output)
        output.result({"kind": kind, "folder": str(target)}, [f"made {kind} in {target}"])
        return
    if kind not in ARCHITECTURES:
        known = ", ".join([APPLICATIONS, *sorted(ARCHITECTURES)])
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


TIMEOUT_S = 600.0
REPORTED = frozenset(
    {"estimator", "bytes", "rows", "random", "compared", "tolerance", "differences"}
)
SUFFIXES = (".joblib", ".pkl", ".pickle")


class Format(StrEnum):
    SKOPS = "skops"
    ONNX = "onnx"


@app.command("convert")
def convert(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model.joblib or model.pkl.")],
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to write model.skops or model.onnx to.")
    ],
    *,
    to: Annotated[
        Format,
        typer.Option("--format", help="`onnx` needs pilotlight[convert], and computes in 32 bits."),
    ] = Format.SKOPS,
    rows: Annotated[
        Path | None,
        typer.Option(
            help="Rows to compare predictions with: a JSON list as the instances of a V1 request."
            " Random numbers without it."
        ),
    ] = None,
    allow_differences: Annotated[
        bool, typer.Option(help="Write the model also if its predictions differ.")
    ] = False,
    json_: flags.Json = False,
) -> None:
    """Convert a pickled scikit-learn model to skops or ONNX, and compare its predictions.

    Reading a pickle runs code that came with it: that happens in a process without network, which
    can read Python's libraries and the model only, and write to a temporary folder only.
    """
    output = Output(json_)
    _check(model, rows)
    result = f"model.{to}"
    with TemporaryDirectory() as scratch:
        differences = "allow" if allow_differences else "refuse"
        report = _run(model, scratch, str(rows or "-"), to.value, differences)
        if "error" in report:
            raise PilotlightError(f"cannot convert {model}: {report['error']}")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(scratch) / result, folder / result)
    output.result(
        report | {"folder": str(folder)},
        [
            f"wrote {folder / result} ({report['estimator']}, {report['bytes']} bytes)",
            _compared(report),
        ],
    )


def _compared(report: dict[str, Any]) -> str:
    rows = f"{report['rows']} {'random rows' if report['random'] else 'rows'}"
    if report["differences"]:
        return f"on {rows}, {'; '.join(report['differences'])}"
    compared = " and ".join(report["compared"])
    return f"{compared} agree on {rows} (numbers may differ by {report['tolerance']})"


def _check(model: Path, rows: Path | None) -> None:
    mistakes = []
    if not model.exists():
        mistakes.append(f"MODEL: no such file: {str(model)!r}")
    elif not model.is_file() or model.suffix not in SUFFIXES:
        mistakes.append(f"MODEL must be a file {', '.join(SUFFIXES)}, was {str(model)!r}")
    if rows is not None and not rows.is_file():
        mistakes.append(f"--rows: no such file: {str(rows)!r}")
    elif rows is not None:
        try:
            json.loads(rows.read_text())
        except ValueError as error:
            mistakes.append(f"--rows must be a file of JSON: {error}")
    if mistakes:
        raise InvalidInput(mistakes)


def _run(model: Path, *arguments: str) -> dict[str, Any]:
    """The report of the confined process, which has none of this process' environment."""
    command = [*python_module("runtime.sandbox.conversion"), str(model), *arguments]
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    try:
        made = subprocess.run(
            command,
            env=dict.fromkeys(threads, "1") | {"PATH": "/usr/bin:/bin"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PilotlightError(f"cannot convert {model}: no end within {TIMEOUT_S:g} s") from error
    try:  # the model's code may have printed, too
        report: dict[str, Any] = json.loads(made.stdout.rstrip().rpartition("\n")[2])
    except ValueError:
        return {"error": f"its process ended with {made.returncode}: {made.stderr[-500:]}"}
    if not isinstance(report, dict) or not ("error" in report or report.keys() >= REPORTED):
        return {"error": "its process printed no report"}
    return report
