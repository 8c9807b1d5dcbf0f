"""Accuracy profiles of an application's variants as a JSON document, and back.

A profile belongs to one generation of a model: a document of other generations is refused.
"""

import json
from dataclasses import asdict
from typing import Any, Final

from pilotlight.errors import InvalidInput
from registry.domain.application import (
    AccuracyProfile,
    ApplicationSpec,
    parse_confusion,
    read_tensors,
)
from registry.domain.cluster import ClusterState
from variants.application_variants import named_variants

KIND: Final = "pilotlight accuracy profiles"


def accuracy_document(spec: ApplicationSpec, state: ClusterState) -> dict[str, Any]:
    """The stored profiles of the application's variants."""
    variants = {
        each.name.name: {
            "generation": each.generation,
            "confusion": profile.confusion,
            "inputs": [asdict(tensor) for tensor in profile.inputs],
            "outputs": list(profile.outputs),
        }
        for each, _ in named_variants(spec, state)
        if (profile := state.accuracies.get(each.name)) is not None and profile.key == each.key
    }
    return {
        "kind": KIND,
        "application": str(spec.name),
        "classes": list(spec.classes),
        "variants": variants,
    }


def parse_accuracies(
    text: str, spec: ApplicationSpec, state: ClusterState, *, file: str
) -> list[AccuracyProfile]:
    """Raises InvalidInput with all mistakes."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidInput([f"--import: {file} is not JSON: {error}"]) from error
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise InvalidInput([f"--import: {file} is not what `profile APPLICATION --export` writes"])
    if document.get("classes") != list(spec.classes):
        shown = document.get("classes")
        raise InvalidInput(
            [f"--import: {file}: classes must be {list(spec.classes)}, were {shown!r}"]
        )
    problems: list[str] = []
    found = []
    variants = document.get("variants")
    for name, each in (variants if isinstance(variants, dict) else {}).items():
        problem, profile = _parse(name, each, spec, state)
        if profile is not None:
            found.append(profile)
        else:
            problems.append(f"--import: {file}: {name}: {problem}")
    if not found and not problems:
        problems.append(f"--import: {file} has no variants")
    if problems:
        raise InvalidInput(problems)
    return found


def _parse(
    name: str, document: Any, spec: ApplicationSpec, state: ClusterState
) -> tuple[str, AccuracyProfile | None]:
    models = {each.name.name: each for each, _ in named_variants(spec, state)}
    model = models.get(name)
    if model is None:
        return f"is no variant of {spec.name}; it has {', '.join(sorted(models)) or 'none'}", None
    generation = document.get("generation") if isinstance(document, dict) else None
    if generation != model.generation:
        return (
            f"the profile is of generation {generation!r}, the model's is {model.generation!r}; "
            f"run `pilotlight profile {spec.name} --examples FILE`",
            None,
        )
    try:
        confusion = parse_confusion(document.get("confusion"), len(spec.classes))
    except ValueError as error:
        return f"confusion must be {error}", None
    try:
        inputs = read_tensors(document.get("inputs", ()))
        outputs = tuple(map(str, document.get("outputs", ())))
    except (TypeError, KeyError):
        return "inputs must list objects with name, datatype and shape, and outputs names", None
    return "", AccuracyProfile(model.key, spec.classes, confusion, inputs, outputs)
