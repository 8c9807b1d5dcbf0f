"""`apply` and `delete`: what models there are. All mistakes together, and then nothing is done."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pilotlight.errors import InvalidInput, NotFound
from registry.errors import InvalidModel
from registry.inference_service.reader import read_documents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pilotlight.commands.target import PlatformTarget
    from pilotlight.output import Output
    from registry.domain.model import ModelName, ModelSpec
    from registry.redis.client import Registry

RESOURCE = "inferenceservice.serving.kserve.io"


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """What became of one declaration: `created`, `configured` or `unchanged`."""

    name: ModelName
    outcome: str


def read_models(paths: Sequence[str], namespace: str | None) -> list[ModelSpec]:
    """Specifications in files, folders and standard input; `InvalidInput` with every mistake."""
    sources: list[tuple[str, str]] = []
    problems: list[str] = []
    for path in paths:
        try:
            sources += _texts(path)
        except (OSError, UnicodeError) as error:
            problems.append(f"{path}: cannot be read: {error}")
        except InvalidInput as error:
            problems += error.problems
    specs: list[ModelSpec] = []
    try:
        specs = read_documents(sources, default_namespace=namespace or "default")
    except InvalidModel as error:
        problems += error.problems
    if problems:
        raise InvalidInput(problems)
    return specs


def _texts(path: str) -> list[tuple[str, str]]:
    if path == "-":
        return [("standard input", sys.stdin.read())]
    place = Path(path)
    if not place.is_dir():
        return [(path, place.read_text(encoding="utf-8"))]
    files = sorted(file for file in place.iterdir() if file.suffix in {".yaml", ".yml"})
    if not files:
        raise InvalidInput([f"{path}: the folder holds no .yaml or .yml file"])
    return [(str(file), file.read_text(encoding="utf-8")) for file in files]


async def put(registry: Registry, specs: Sequence[ModelSpec]) -> list[ApplyResult]:
    """Declare models, hundreds at once; one step for all would keep Redis from everybody else."""
    outcomes = await registry.put_models(specs)
    return [ApplyResult(spec.name, done) for spec, done in zip(specs, outcomes, strict=True)]


def tell_applied(output: Output, applied: Sequence[ApplyResult]) -> None:
    """Print what became of each, as kubectl does."""
    output.result(
        [
            {"namespace": each.name.namespace, "name": each.name.name, "outcome": each.outcome}
            for each in applied
        ],
        [f"{RESOURCE}/{each.name.name} {each.outcome}" for each in applied],
    )


async def apply(
    target: PlatformTarget, output: Output, paths: Sequence[str], namespace: str | None
) -> None:
    """Declare every model in the files; none where one of them has a mistake."""
    specs = read_models(paths, namespace)
    async with target.registry() as registry:
        applied = await put(registry, specs)
    tell_applied(output, applied)


async def delete(target: PlatformTarget, output: Output, names: Sequence[ModelName]) -> None:
    """Withdraw models; those that were not there are an error, after the others are gone."""
    async with target.registry() as registry:
        unknown = await registry.delete_models(names)
    gone = [name for name in names if name not in unknown]
    lines = [f'{RESOURCE} "{name.name}" deleted' for name in gone]
    if unknown:
        for line in lines:
            output.note(line)
        listed = ", ".join(str(name) for name in unknown)
        raise NotFound(f"not found: {listed}; `pilotlight get models` lists what there is")
    output.result(
        [{"namespace": n.namespace, "name": n.name, "outcome": "deleted"} for n in gone], lines
    )
