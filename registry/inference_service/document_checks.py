"""What readers of Kubernetes objects share: mistakes are collected, with the value seen.

Of InferenceApplications and InferenceGraphs; InferenceServices have rules of their own (`reader`).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from common.shown_value import shown
from registry.domain.model import ModelName
from registry.errors import InvalidModel, InvalidYaml
from registry.inference_service.manifests import objects_of

NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
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
        self.problems.append(f"{self.place}: {title}: {path} {allowed}, was {shown(value)}")

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

    def head(self, document: dict[str, Any], api_version: str) -> ModelName:
        """Name and namespace, which from then on stand in all messages."""
        name = self._name(self.mapping(document, "metadata"))
        if document.get("apiVersion") != api_version:
            self.reject("apiVersion", f"must be {api_version!r}", document.get("apiVersion"))
        return name

    def _name(self, metadata: dict[str, Any]) -> ModelName:
        name, namespace = metadata.get("name"), metadata.get("namespace") or self.default_namespace
        self.title = f"{self.kind} {_text(namespace)}/{_text(name)}"
        for key, value, rule in (("name", name, NAME), ("namespace", namespace, _NAMESPACE)):
            if not isinstance(value, str) or not rule.fullmatch(value):
                allowed = "must be at most 63 lower-case letters, digits and '-'"
                self.reject(f"metadata.{key}", allowed, value)
        return ModelName(_text(namespace), _text(name))


class _Named(Protocol):
    @property
    def name(self) -> ModelName: ...


_Spec = TypeVar("_Spec", bound=_Named)


def read_kind(
    kind: str,
    read: Callable[[DocumentChecks, dict[str, Any]], _Spec],
    sources: Sequence[tuple[str, str]],
    *,
    default_namespace: str = "default",
) -> list[_Spec]:
    """The specs of one kind among the documents of `(source name, YAML text)` pairs.

    Documents of other kinds, and text that is not YAML, are left to `reader.read_documents`.

    Raises:
        InvalidModel: lists every mistake of every object; the caller must apply none.
    """
    specs: list[_Spec] = []
    problems: list[str] = []
    for source, text in sources:
        try:
            documents = objects_of(text)
        except InvalidYaml:
            continue
        for document in documents:
            if not is_kind(kind, document):
                continue
            checks = DocumentChecks(kind, source, default_namespace)
            spec = read(checks, document)
            problems += checks.problems
            if any(spec.name == other.name for other in specs):
                problems.append(f"{source}: {kind} {spec.name}: metadata.name is declared twice")
            specs.append(spec)
    if problems:
        raise InvalidModel(problems)
    return specs


def read_parsed(
    kind: str,
    read: Callable[[DocumentChecks, dict[str, Any]], _Spec],
    document: dict[str, Any],
    place: str,
) -> _Spec:
    """The spec of one object that is parsed already. Raises InvalidModel."""
    checks = DocumentChecks(kind, place, "default")
    spec = read(checks, document)
    if checks.problems:
        raise InvalidModel(checks.problems)
    return spec


def is_kind(kind: str, document: object) -> bool:
    return isinstance(document, dict) and document.get("kind") == kind


def _text(value: object) -> str:
    return value if isinstance(value, str) else shown(value)
