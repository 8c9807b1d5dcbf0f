"""Responses of the admission webhooks to an AdmissionReview. Pure.

Validation uses the reader of `pilotlight apply`, so the messages are the same. Objects that are
being deleted are allowed: their finalizers must be removable whatever their annotations are.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from controller.resources import (
    MODEL_MODE,
    Kind,
    Role,
    ServiceObject,
    annotation_problems,
    declared_model,
    mode_problem,
    name_problem,
    read_graph_object,
    role_of,
)
from registry.domain.model import ModelName
from registry.errors import InvalidModel
from registry.inference_service.graph_reader import is_graph
from registry.inference_service.model_resource import KIND as MODEL
from registry.inference_service.model_resource import MODE, is_model
from registry.inference_service.predictors import ignored_fields
from registry.inference_service.reader import KIND
from registry.inference_service.tenant_quotas import TenantRules, access_problem
from variants.application import is_application, read_application


def review_response(
    review: Mapping[str, Any], handle: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """The AdmissionReview with the response to its request. Raises KeyError without a request."""
    request = review["request"]
    return {
        "apiVersion": review.get("apiVersion", "admission.k8s.io/v1"),
        "kind": "AdmissionReview",
        "response": {"uid": request["uid"], **handle(request)},
    }


def validate(
    request: Mapping[str, Any],
    rules_of: Callable[[str], TenantRules | None] = lambda _pool: None,
    namesake: Callable[[Kind, ModelName], ServiceObject | None] = lambda _kind, _name: None,
) -> dict[str, Any]:
    """Reject an object with mistakes in its Pilotlight annotations or its model.

    `rules_of`: the rules of a pool by name; None: unknown. Quotas are left to the controller.
    `namesake`: what declares a model of this name by an object of the other kind.
    """
    document = _object(request)
    problems = _problems(document, rules_of)
    if request.get("operation") == "CREATE" and role_of(document) is Role.MODEL:
        name = ModelName(document["metadata"]["namespace"], document["metadata"].get("name", ""))
        other = namesake(Kind.MODEL if is_model(document) else Kind.SERVICE, name)
        problems += () if other is None else (name_problem(other),)
    if not problems:
        return {"allowed": True, **_warnings(document)}
    status = {"code": 422, "reason": "Invalid", "message": "\n".join(problems)}
    return {"allowed": False, "status": status}


def set_defaults(request: Mapping[str, Any]) -> dict[str, Any]:
    """Set `MODEL_MODE` on a model of a pool that has no deployment mode."""
    document = _object(request)
    annotations = (document.get("metadata") or {}).get("annotations") or {}
    if role_of(document) is not Role.MISPLACED or annotations.get(MODE):
        return {"allowed": True}
    if (document.get("status") or {}).get("deploymentMode"):
        return {"allowed": True}  # the mode cannot change; the validating webhook reports it
    path = "/metadata/annotations/" + MODE.replace("~", "~0").replace("/", "~1")
    patch = orjson.dumps([{"op": "add", "path": path, "value": MODEL_MODE}])
    return {"allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}


def _object(request: Mapping[str, Any]) -> dict[str, Any]:
    """The object, with placeholders for names that the API server sets later."""
    document = dict(request.get("object") or {})
    metadata = dict(document.get("metadata") or {})
    metadata.setdefault("namespace", request.get("namespace") or "default")
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = metadata["generateName"] + "x"
    document["metadata"] = metadata
    return document


def _warnings(document: Mapping[str, Any]) -> dict[str, Any]:
    """For `kubectl` to print: what of a model has no effect."""
    if document.get("kind") not in (KIND, MODEL) or role_of(document) is not Role.MODEL:
        return {}
    paths = ignored_fields(document.get("spec") or {})
    texts = [f"{path} has no effect: the pods of the pool have their own" for path in paths]
    return {"warnings": texts} if texts else {}


def _problems(
    document: Mapping[str, Any], rules_of: Callable[[str], TenantRules | None]
) -> tuple[str, ...]:
    if "deletionTimestamp" in document["metadata"]:
        return ()
    if is_application(document):
        try:
            read_application(dict(document), f"{document['metadata']['namespace']}")
        except InvalidModel as error:
            return tuple(error.problems)
        return ()
    if is_graph(document):
        return read_graph_object(document).problems
    match role_of(document):
        case Role.MODEL:
            try:
                spec = declared_model(document)
            except InvalidModel as error:
                return tuple(error.problems)
            rules = rules_of(spec.pool)
            problem = None if rules is None else access_problem(spec, rules, spec.pool)
            return () if problem is None else (f"{document['kind']} {spec.name}: {problem}",)
        case Role.MISPLACED:
            return (mode_problem(document), *annotation_problems(document))
        case _:
            return annotation_problems(document)
