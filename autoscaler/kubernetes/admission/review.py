"""What the admission webhooks answer to an AdmissionReview. Pure.

The same reader and words as `pilotlight apply`. Objects on their way out pass: their finalizers
must go whatever their annotations say.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import orjson

from autoscaler.kubernetes.models.inference_services import (
    MODE,
    MODEL_MODE,
    Role,
    annotation_problems,
    declared_model,
    role_of,
    wrong_mode,
)
from registry.errors import InvalidModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def answer_review(
    review: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """An AdmissionReview with the answer to its request. Raises KeyError where it has none."""
    request = review["request"]
    return {
        "apiVersion": review.get("apiVersion", "admission.k8s.io/v1"),
        "kind": "AdmissionReview",
        "response": {"uid": request["uid"], **answer(request)},
    }


def validate(request: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse an InferenceService whose Pilotlight annotations, or model, have mistakes."""
    problems = _problems(_object(request))
    if not problems:
        return {"allowed": True}
    status = {"code": 422, "reason": "Invalid", "message": "\n".join(problems)}
    return {"allowed": False, "status": status}


def set_defaults(request: Mapping[str, Any]) -> dict[str, Any]:
    """Give a model of a pool the mode in which KServe leaves it alone, where it names none."""
    document = _object(request)
    annotations = (document.get("metadata") or {}).get("annotations") or {}
    if role_of(document) is not Role.MISPLACED or annotations.get(MODE):
        return {"allowed": True}
    if (document.get("status") or {}).get("deploymentMode"):
        return {"allowed": True}  # too late to set it: the validating webhook says what to do
    path = "/metadata/annotations/" + MODE.replace("~", "~0").replace("/", "~1")
    patch = orjson.dumps([{"op": "add", "path": path, "value": MODEL_MODE}])
    return {
        "allowed": True,
        "patchType": "JSONPatch",
        "patch": base64.b64encode(patch).decode(),
    }


def _object(request: Mapping[str, Any]) -> dict[str, Any]:
    """The object, with the names that the API server has not yet filled in."""
    document = dict(request.get("object") or {})
    metadata = dict(document.get("metadata") or {})
    metadata.setdefault("namespace", request.get("namespace") or "default")
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = metadata["generateName"] + "x"
    document["metadata"] = metadata
    return document


def _problems(document: Mapping[str, Any]) -> tuple[str, ...]:
    if "deletionTimestamp" in document["metadata"]:
        return ()
    match role_of(document):
        case Role.MODEL:
            try:
                declared_model(document)
            except InvalidModel as error:
                return tuple(error.problems)
            return ()
        case Role.MISPLACED:
            return (wrong_mode(document), *annotation_problems(document))
        case _:
            return annotation_problems(document)
