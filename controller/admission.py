"""Responses of the admission webhooks to an AdmissionReview. Pure.

Validation uses the reader of `pilotlight apply`, so the messages are the same. Objects that are
being deleted are allowed: their finalizers must be removable whatever their annotations are.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from controller.resources import (
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
from registry.domain.tenant_rules import TenantRules, access_problem
from registry.errors import InvalidModel
from registry.inference_service.fields import auth_problem, warnings_of
from registry.inference_service.graph_reader import is_graph
from registry.inference_service.model_resource import MODE, MODEL_MODE, is_model
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
    *,
    asks_clients: bool = False,
) -> dict[str, Any]:
    """Reject an object with mistakes; warn, for `kubectl` to print, of what has no effect.

    `rules_of`: the rules of a pool by name; None: unknown. Quotas are left to the controller.
    `namesake`: what declares a model of this name by an object of the other kind.
    `asks_clients`: whether the gateway asks clients for keys or tokens.
    """
    document = _object(request)
    problems: list[str] = []
    warnings: list[str] = []
    try:
        warnings = _check(document, rules_of, asks_clients)
    except InvalidModel as error:
        problems += error.problems
    if request.get("operation") == "CREATE" and role_of(document) is Role.MODEL:
        name = ModelName(document["metadata"]["namespace"], document["metadata"].get("name", ""))
        other = namesake(Kind.MODEL if is_model(document) else Kind.SERVICE, name)
        problems += [] if other is None else [name_problem(other)]
    if not problems:
        return {"allowed": True, **({"warnings": warnings} if warnings else {})}
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


def _check(
    document: Mapping[str, Any], rules_of: Callable[[str], TenantRules | None], asks_clients: bool
) -> list[str]:
    """Warnings. Raises InvalidModel."""
    problems: Sequence[str | None] = ()
    spec: object = None
    if "deletionTimestamp" in document["metadata"]:
        return []
    if is_application(document):
        read_application(dict(document), f"{document['metadata']['namespace']}")
    elif is_graph(document):
        graph = read_graph_object(document)
        spec, problems = graph.spec, graph.problems
    elif role_of(document) is Role.MODEL:
        spec = declared_model(document)
        rules = rules_of(spec.pool)
        problem = None if rules is None else access_problem(spec, rules, spec.pool)
        title = f"{document['kind']} {spec.name}"
        problems = (problem and f"{title}: {problem}", None if asks_clients else auth_problem(spec))
    else:
        mode = (mode_problem(document),) if role_of(document) is Role.MISPLACED else ()
        problems = (*mode, *annotation_problems(document))
    if found := list(filter(None, problems)):
        raise InvalidModel(found)
    return warnings_of(spec)
