"""What an InferenceService is to us, read from the object as the API server holds it.

A pool carries the label `pilotlight.io/pool`, which KServe copies to its pods; a model names its
pool in the annotation of that name. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from registry.domain.model import ModelName, ModelSpec
from registry.errors import InvalidModel
from registry.inference_service.annotations import PREFIX, parse_annotations
from registry.inference_service.reader import API_VERSION, KIND, read_object

if TYPE_CHECKING:
    from collections.abc import Mapping

POOL = PREFIX + "pool"
MODE = "serving.kserve.io/deploymentMode"
MODEL_MODE = "ModelMesh"
"""The mode in which KServe leaves an InferenceService alone: a model is no set of pods."""
FINALIZER = PREFIX + "unload"
OWNER = "controller.pilotlight.io/uid"
"""In the registry only: which object a model was declared by."""
_NOT_OURS = ("kubectl.kubernetes.io/last-applied-configuration",)


class Role(StrEnum):
    """What an InferenceService is to us."""

    POOL = "pool"
    MODEL = "model"
    MISPLACED = "misplaced"
    """It names a pool but is in a mode in which KServe makes pods for it."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ServiceObject:
    """An InferenceService, reduced to what the controller decides on."""

    name: ModelName
    uid: str
    resource_version: str
    generation: int
    created: str
    """RFC 3339, as the API server wrote it."""
    role: Role
    pool: str
    """The pool it is or names; empty: none."""
    is_deleted: bool
    finalizers: tuple[str, ...]
    spec: ModelSpec | None
    problems: tuple[str, ...]
    """What is wrong with a model's declaration, one line each."""
    status: Mapping[str, Any]

    @property
    def is_held(self) -> bool:
        """Whether our finalizer keeps it from going."""
        return FINALIZER in self.finalizers


def read_service(document: Mapping[str, Any]) -> ServiceObject:
    """Read an object that passed the API server's own schema."""
    metadata = document["metadata"]
    status = document.get("status") or {}
    role = role_of(document)
    problems: tuple[str, ...] = ()
    spec = None
    if role is Role.MODEL:
        try:
            spec = declared_model(document)
        except InvalidModel as error:
            problems = tuple(error.problems)
    elif role is Role.MISPLACED:
        problems = (wrong_mode(document),)
    elif role is Role.POOL:
        problems = annotation_problems(document)
    return ServiceObject(
        name=ModelName(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        generation=metadata.get("generation", 0),
        created=metadata["creationTimestamp"],
        role=role,
        pool=_pool(metadata, role),
        is_deleted="deletionTimestamp" in metadata,
        finalizers=tuple(metadata.get("finalizers") or ()),
        spec=spec,
        problems=problems,
        status=status,
    )


def role_of(document: Mapping[str, Any]) -> Role:
    """What an InferenceService is to us."""
    metadata = document.get("metadata") or {}
    if POOL in (metadata.get("labels") or {}):
        return Role.POOL
    if POOL not in (metadata.get("annotations") or {}):
        return Role.OTHER
    return Role.MODEL if mode_of(document) == MODEL_MODE else Role.MISPLACED


def mode_of(document: Mapping[str, Any]) -> str:
    """The deployment mode as KServe finds it: what the status recorded comes first."""
    recorded = (document.get("status") or {}).get("deploymentMode")
    annotations = (document.get("metadata") or {}).get("annotations") or {}
    return str(recorded or annotations.get(MODE, ""))


def declared_model(document: Mapping[str, Any]) -> ModelSpec:
    """The model that an object declares, with its owner noted. Raises InvalidModel."""
    whole = {"apiVersion": API_VERSION, "kind": KIND, **document}
    spec = read_object(whole)
    kept = [pair for pair in spec.annotations if pair[0] not in _NOT_OURS]
    kept.append((OWNER, str(document["metadata"].get("uid", ""))))
    return replace(spec, annotations=tuple(sorted(kept)))


def owner_of(spec: ModelSpec) -> str | None:
    """The uid of the object a registered model was declared by; None: not by an object."""
    return dict(spec.annotations).get(OWNER)


def annotation_problems(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What is wrong with the annotations of an object that KServe makes pods for."""
    metadata = document.get("metadata") or {}
    parsed = parse_annotations(metadata.get("annotations") or {})
    title = f"{KIND} {metadata.get('namespace', 'default')}/{metadata.get('name', '')}"
    return tuple(f"{title}: {problem}" for problem in parsed.problems)


def wrong_mode(document: Mapping[str, Any]) -> str:
    """Why an object that names a pool is no model, and what to do."""
    metadata = document.get("metadata") or {}
    title = f"{KIND} {metadata.get('namespace', 'default')}/{metadata.get('name', '')}"
    recorded = (document.get("status") or {}).get("deploymentMode")
    if recorded:
        return (
            f"{title}: status.deploymentMode is {recorded!r} for good, and a model of a pool needs "
            f"{MODEL_MODE!r}; delete the InferenceService and create it again with the annotation "
            f"{MODE}: {MODEL_MODE}"
        )
    seen = (metadata.get("annotations") or {}).get(MODE)
    return (
        f"{title}: metadata.annotations[{MODE}] must be {MODEL_MODE!r} for a model of a pool, "
        f"was {seen!r}"
    )


def _pool(metadata: Mapping[str, Any], role: Role) -> str:
    if role is Role.POOL:
        return str(metadata["labels"][POOL])
    return str((metadata.get("annotations") or {}).get(POOL, ""))
