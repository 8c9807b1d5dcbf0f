"""`import modelmesh`: ModelMesh's objects as InferenceServices of a pool, with a report."""

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from pilotlight.commands import flags
from pilotlight.errors import InvalidInput, PilotlightError
from pilotlight.output import Output
from registry.errors import InvalidYaml
from registry.inference_service.modelmesh import SECRET, import_modelmesh
from registry.inference_service.strict_yaml import read_yaml

TIMEOUT_S = 60.0
RESOURCES = (
    "inferenceservices.serving.kserve.io",
    "servingruntimes.serving.kserve.io",
    "clusterservingruntimes.serving.kserve.io",
)

app = typer.Typer()
imports = typer.Typer(no_args_is_help=True, help="Make declarations from other systems' objects.")
app.add_typer(imports, name="import")


@imports.callback()
def _import() -> None:
    """Make declarations from other systems' objects."""


@imports.command("modelmesh")
def modelmesh(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="YAML or JSON of ModelMesh's objects."),
    ] = None,
    *,
    context: Annotated[
        str | None,
        typer.Option(help="Read a cluster with kubectl, by its context; changes nothing."),
    ] = None,
    target: Annotated[
        Path | None, typer.Option("-o", "--output", help="File for the YAML; default: stdout.")
    ] = None,
    overwrite: flags.Overwrite = False,
    pool: flags.Pool = "default",
    json_: flags.Json = False,
) -> None:
    """Write InferenceServices for a pool from ModelMesh's objects, and report on each.

    Reads InferenceServices in mode ModelMesh, Predictors, ServingRuntimes and the Secret
    storage-config (buckets only). Nothing is applied: `pilotlight apply -f` does that.
    """
    output = Output(json_)
    if bool(files) == (context is not None):
        raise InvalidInput(["give files or --context, and not both"])
    if target is not None and target.exists() and not overwrite:
        raise InvalidInput([f"{target} exists already; --overwrite replaces it"])
    documents = _read_cluster(context) if context is not None else _read_files(files or [])
    found = import_modelmesh(documents, pool=pool)
    if not found.report:
        raise InvalidInput(["the input holds no object of ModelMesh's"])
    text = yaml.safe_dump_all(found.documents, sort_keys=False)
    if target is not None:
        _write(target, text)
    for line in found.report:
        output.note(f"{line.outcome:<10} {line.object}: {line.detail}")
    output.result(
        {"documents": found.documents, "report": [asdict(line) for line in found.report]},
        [f"wrote {len(found.documents)} models to {target}"] if target else [text.rstrip()],
    )


def _write(target: Path, text: str) -> None:
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput([f"cannot write {target}: {error.strerror}"]) from error


def _read_files(files: list[Path]) -> list[Any]:
    documents: list[Any] = []
    problems = []
    for file in files:
        try:
            documents += read_yaml(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeError, InvalidYaml) as error:
            problems.append(f"{file}: {error}")
    if problems:
        raise InvalidInput(problems)
    return documents


def _read_cluster(context: str) -> list[Any]:
    """What kubectl reads of all namespaces; kinds that the cluster lacks are left out."""
    secrets = ("secrets", "--field-selector", f"metadata.name={SECRET}")
    found = []
    for resource in ((RESOURCES[0],), (RESOURCES[1],), (RESOURCES[2],), secrets):
        command = ["kubectl", "--context", context, "get", *resource, "-A", "-o", "json"]
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PilotlightError(f"cannot run kubectl: {error}") from error
        if ran.returncode and "doesn't have a resource type" in ran.stderr:
            continue
        if ran.returncode:
            raise PilotlightError(f"{' '.join(command)}: {ran.stderr.strip()[-500:]}")
        found.append(json.loads(ran.stdout))
    return found
