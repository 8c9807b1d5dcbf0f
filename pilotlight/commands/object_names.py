"""Names of objects as kubectl takes and prints them: with or without kind and namespace."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pilotlight.errors import InvalidInput
from registry.domain.model import ModelName


class Kind(StrEnum):
    """Resources, as kubectl prints them."""

    MODEL = "inferenceservice.serving.kserve.io"
    APPLICATION = "inferenceapplication.pilotlight.io"
    GRAPH = "inferencegraph.serving.kserve.io"


_WORDS: Final = {
    "inferenceservice": Kind.MODEL,
    "inferenceservices": Kind.MODEL,
    "isvc": Kind.MODEL,
    "inferenceapplication": Kind.APPLICATION,
    "inferenceapplications": Kind.APPLICATION,
    "iapp": Kind.APPLICATION,
    "inferencegraph": Kind.GRAPH,
    "inferencegraphs": Kind.GRAPH,
    "ig": Kind.GRAPH,
}
"""Singular, plural and short names of the resources."""


@dataclass(frozen=True, slots=True)
class ObjectName:
    kind: Kind | None
    """None: whatever has the name."""
    name: ModelName


def parse_object_names(names: Sequence[str], namespace: str | None) -> list[ObjectName]:
    """`NAME` and `KIND/NAME`, or a kind before all names; `NAMESPACE/NAME` for `NAME` as well."""
    kind = _parse_kind(names[0]) if len(names) > 1 else None
    texts = names if kind is None else names[1:]
    parsed = [_parse(text, namespace, kind) for text in texts]
    problems = [
        f"a name is NAME, NAMESPACE/NAME or KIND/NAME, was {text!r}"
        for text, each in zip(texts, parsed, strict=True)
        if not each.name.name or not each.name.namespace or "/" in each.name.name
    ]
    if problems:
        raise InvalidInput(problems)
    return list(dict.fromkeys(parsed))


def parse_model_names(names: Sequence[str], namespace: str | None) -> list[ModelName]:
    """The same for a command that takes objects of one kind, and none before the names."""
    return [each.name for text in names for each in parse_object_names([text], namespace)]


def shown_name(name: ModelName) -> str:
    """The name, with its namespace unless that is `default`."""
    return str(name).removeprefix("default/")


def _parse(text: str, namespace: str | None, kind: Kind | None) -> ObjectName:
    word, _, rest = text.partition("/")
    if rest and (own := _parse_kind(word)) is not None:
        kind, text = own, rest
    name = ModelName.parse(text) if "/" in text else ModelName(namespace or "default", text)
    return ObjectName(kind, name)


def _parse_kind(text: str) -> Kind | None:
    """The kind of `inferenceservice`, `isvc` or `inferenceservices.v1beta1.serving.kserve.io`."""
    word, _, group = text.lower().partition(".")
    kind = _WORDS.get(word)
    own_group = "" if kind is None else kind.partition(".")[2]
    return kind if not group or f".{group}".endswith(f".{own_group}") else None
