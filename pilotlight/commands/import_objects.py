"""`import`: other systems' objects and models as InferenceServices of a pool, with a report."""

import json
import re
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from pilotlight.commands import flags
from pilotlight.errors import InvalidInput, PilotlightError
from pilotlight.imported_objects import SECRET, NotServed, import_mlflow, import_modelmesh
from pilotlight.output import Output
from registry.errors import InvalidModel, InvalidYaml
from registry.inference_service.documents import read_yaml
from registry.inference_service.model_resource import as_model
from registry.inference_service.reader import read_object

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


Target = Annotated[
    Path | None, typer.Option("-o", "--output", help="File for the YAML; default, and -: stdout.")
]
Models = Annotated[
    bool, typer.Option("--models", help="Write Models, which need no KServe, instead.")
]
_STDOUT = Path("-")


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
    target: Target = None,
    overwrite: flags.Overwrite = False,
    pool: flags.Pool = "default",
    models: Models = False,
    json_: flags.Json = False,
) -> None:
    """Write InferenceServices for a pool from ModelMesh's objects, and report on each.

    Reads InferenceServices in mode ModelMesh, Predictors, ServingRuntimes and the Secret
    storage-config (buckets only). Nothing is applied: `pilotlight apply -f` does that.
    """
    output = Output(json_)
    if bool(files) == (context is not None):
        raise InvalidInput(["give files or --context, and not both"])
    _check_target(target, overwrite)
    documents = _read_cluster(context) if context is not None else _read_files(files or [])
    found = import_modelmesh(documents, pool=pool)
    if not found.report:
        raise InvalidInput(["the input holds no object of ModelMesh's"])
    made = list(map(as_model, found.documents)) if models else found.documents
    text = yaml.safe_dump_all(made, sort_keys=False)
    lines = [f"{line.outcome:<10} {line.object}: {line.detail}" for line in found.report]
    document = {"documents": made, "report": [asdict(line) for line in found.report]}
    _conclude(output, target, text, lines, document, f"{len(found.documents)} models")


@imports.command("mlflow")
def mlflow(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A model that MLflow saved.")],
    *,
    name: Annotated[str | None, typer.Option(help="Of the model; default: the folder's.")] = None,
    uri: Annotated[
        str | None,
        typer.Option("--storage-uri", help="Where pods find DIR; default: on this machine."),
    ] = None,
    target: Target = None,
    overwrite: flags.Overwrite = False,
    namespace: flags.Namespace = None,
    pool: flags.Pool = "default",
    models: Models = False,
    json_: flags.Json = False,
) -> None:
    """Write an InferenceService for a model that MLflow saved, by its file MLmodel.

    Notes say what must be done before it is served. Nothing is applied or copied.
    """
    output = Output(json_)
    _check_target(target, overwrite)
    if not (folder / "MLmodel").is_file():
        raise InvalidInput(
            [f"FOLDER must be one that MLflow saved a model in, with a file MLmodel, was {folder}"]
        )
    [mlmodel, *_] = [*_read_files([folder / "MLmodel"]), None]
    files = [str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()]
    folder_name = re.sub("[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    try:
        found = import_mlflow(
            mlmodel if isinstance(mlmodel, dict) else {},
            files,
            uri=(uri or folder.resolve().as_uri()).rstrip("/"),
            name=name or folder_name,
            namespace=namespace or "default",
            pool=pool,
        )
        read_object(found.document)
    except NotServed as error:
        raise InvalidInput([f"{folder}: {error}"]) from error
    except InvalidModel as error:
        raise InvalidInput(error.problems) from error
    made = as_model(found.document) if models else found.document
    text = yaml.safe_dump(made, sort_keys=False)
    lines = [f"needs work: {note}" for note in found.notes]
    document = {"document": made, "notes": found.notes}
    _conclude(output, target, text, lines, document, "the model")


def _check_target(target: Path | None, overwrite: bool) -> None:
    if target is not None and target != _STDOUT and target.exists() and not overwrite:
        raise InvalidInput([f"{target} exists already; --overwrite replaces it"])


def _conclude(
    output: Output, target: Path | None, text: str, notes: list[str], document: Any, what: str
) -> None:
    """Write the YAML to the target, or else print it."""
    target = None if target == _STDOUT else target
    if target is not None:
        try:
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidInput([f"cannot write {target}: {error.strerror}"]) from error
    for note in notes:
        output.note(note)
    output.result(document, [f"wrote {what} to {target}"] if target else [text.rstrip()])


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
