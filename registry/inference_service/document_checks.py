"""What readers of Kubernetes objects share: mistakes are collected, with the value seen."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from registry.domain.model import ModelName
from registry.inference_service.shorten import shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(slots=True)
class DocumentChecks:
    """Checks one document and collects its mistakes in `problems`."""

    kind: str
    place: str
    default_namespace: str
    problems: list[str] = field(default_factory=list)
    title: str = ""

    def reject(self, path: str, allowed: str, value: object) -> None:
        title = self.title or self.kind
        self.problems.append(f"{self.place}: {title}: {path} {allowed}, was {shorten(value)}")

    def mapping(self, parent: dict[str, Any], key: str) -> dict[str, Any]:
        """A field that must be a filled object; empty where it is none."""
        value = parent.get(key)
        if isinstance(value, dict) and value:
            return value
        self.reject(key, "must be an object", value)
        return {}

    def known(self, mapping: dict[str, Any], fields: Sequence[str], path: str) -> None:
        """Reject fields that do not exist."""
        for key in mapping:
            if key not in fields:
                self.reject(path, f"may have the fields {', '.join(fields)}", key)

    def name(self, metadata: dict[str, Any]) -> ModelName:
        """Name and namespace, which from then on stand in all messages."""
        name, namespace = metadata.get("name"), metadata.get("namespace", self.default_namespace)
        self.title = f"{self.kind} {_text(namespace)}/{_text(name)}"
        for key, value, rule in (("name", name, _NAME), ("namespace", namespace, _NAMESPACE)):
            if not isinstance(value, str) or not rule.fullmatch(value):
                allowed = "must be at most 63 lower-case letters, digits and '-'"
                self.reject(f"metadata.{key}", allowed, value)
        return ModelName(_text(namespace), _text(name))


def _text(value: object) -> str:
    return value if isinstance(value, str) else shorten(value)
