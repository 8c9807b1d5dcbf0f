"""The gateway's OpenAPI document as a page, which loads nothing from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def operation_groups(document: Mapping[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Operations by tag, each in the order of the document."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["other"])[0]
            groups.setdefault(tag, []).append(_operation(path, method, operation))
    return list(groups.items())


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "method": method.upper(),
        "path": path,
        "summary": operation.get("summary", ""),
        "description": operation.get("description", ""),
        "parameters": [
            {
                "name": each["name"], "in": each["in"], "required": each.get("required", False),
                "description": each.get("description", ""),
            }
            for each in operation.get("parameters", ())
        ],
        "responses": [
            (status, each["description"]) for status, each in operation["responses"].items()
        ],
    }  # fmt: skip
