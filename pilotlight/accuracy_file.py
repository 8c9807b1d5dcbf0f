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

KIND: Final = "pilotlight accuracy profiles"


def accuracy_document(spec: ApplicationSpec, state: ClusterState) -> dict[str, Any]:
    """The stored profiles of the application's variants."""
    variants = {
        name.name: {
            "generation": state.models[name].serving.generation,
            "confusion": profile.confusion,
            "inputs": [asdict(each) for each in profile.inputs],
            "outputs": list(profile.outputs),
        }
        for name, profile in sorted(state.accuracies.items())
        if name.namespace == spec.name.namespace
        and name in state.models
        and state.models[name].serving.policy.application == spec.name.name
        and profile.key == state.models[name].serving.key
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
    models = {
        model.name: record.serving
        for model, record in state.models.items()
        if model.namespace == spec.name.namespace
        and record.serving.policy.application == spec.name.name
    }
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
    size = len(spec.classes)
    confusion = parse_confusion(document.get("confusion"), size)
    if confusion is None:
        return f"confusion must be {size} rows of {size} counts, with an example in each", None
    try:
        inputs = read_tensors(document.get("inputs", ()))
        outputs = tuple(map(str, document.get("outputs", ())))
    except (TypeError, KeyError):
        return "inputs must list objects with name, datatype and shape, and outputs names", None
    return "", AccuracyProfile(model.key, spec.classes, confusion, inputs, outputs)
