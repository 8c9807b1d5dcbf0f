"""`Model`, a resource of our own: the components of an InferenceService, and its policy as fields.

It is read as the InferenceService that it stands for, whose annotations its fields become.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from common.shown_value import shown
from registry.domain.model import ModelSpec
from registry.inference_service.annotations import KEYS, PREFIX

API_VERSION: Final = "pilotlight.io/v1alpha1"
KIND: Final = "Model"
COMPONENTS: Final = ("predictor", "transformer", "explainer")
MODE: Final = "serving.kserve.io/deploymentMode"
MODEL_MODE: Final = "ModelMesh"
"""Deployment mode in which KServe creates nothing for an InferenceService without transformer."""
_DECLARED_AS: Final = "controller.pilotlight.io/kind"
"""Annotation in the registry only: the kind that declares the model, if it is this one."""
_TYPES: Final = {"string": str, "integer": int, "boolean": bool}
_NAMED: Final = re.compile(rf"metadata\.annotations\[{PREFIX}([-a-z]+)\]")


def field_name(key: str) -> str:
    """The field of `spec` with the meaning of an annotation: `maxBatchSize` of `max-batch-size`."""
    first, *others = key.split("-")
    return first + "".join(map(str.capitalize, others))


FIELDS: Final[Mapping[str, str]] = {field_name(key): key for key in KEYS}
"""Keys of annotations, without their prefix, by field."""


def is_model(document: Mapping[str, Any]) -> bool:
    return document.get("kind") == KIND


def declaring_kind(spec: ModelSpec) -> str:
    return dict(spec.annotations).get(_DECLARED_AS, "InferenceService")


def as_service(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """An InferenceService in place of a Model, and the mistakes that only a Model can have."""
    spec, metadata = _mapping(document, "spec"), _mapping(document, "metadata")
    given = _mapping(metadata, "annotations")
    problems = [
        f"the annotation {key} must be the field spec.{field_name(str(key).removeprefix(PREFIX))} "
        f"of a {KIND}, was {shown(text)}"
        for key, text in given.items()
        if str(key).startswith(PREFIX)
    ]
    if not isinstance(texts := metadata.get("annotations", {}), dict):
        problems.append(f"metadata.annotations must be an object, was {shown(texts)}")
    annotations = {key: text for key, text in given.items() if not str(key).startswith(PREFIX)}
    for name, value in spec.items():
        if name in COMPONENTS:
            continue
        if name not in FIELDS:
            allowed = ", ".join((*COMPONENTS, *FIELDS))
            problems.append(f"spec may have the fields {allowed}, was {shown(name)}")
            continue
        kind = KEYS[FIELDS[name]].schema["type"]
        if type(value) is _TYPES[kind]:
            annotations[PREFIX + FIELDS[name]] = str(value).lower() if kind != "string" else value
        else:
            problems.append(f"spec.{name} must be of type {kind}, was {shown(value)}")
    annotations[_DECLARED_AS] = KIND
    components = {name: spec[name] for name in COMPONENTS if name in spec}
    service = {**document, "metadata": {**metadata, "annotations": annotations}}
    return {**service, "spec": components}, problems


def name_fields(problem: str) -> str:
    """A mistake of the InferenceService, with the Model's fields in place of annotations."""
    return _NAMED.sub(lambda found: f"spec.{field_name(found[1])}", problem)


def _mapping(parent: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}
