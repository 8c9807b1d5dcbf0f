"""Requests to text-to-text models: V1 instances and V2 tensors to texts with their task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from registry.shown_value import shown
from runtime.errors import InvalidRequest
from runtime.wire.tensors import BYTES, Tensor, check_item_count, single_input

if TYPE_CHECKING:
    from collections.abc import Sequence

OPTIONS: Final = ("task", "source_lang", "target_lang")
"""Fields of V1 instances, and V2 tensors, beside the text."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One text; without task and languages the model's default task applies."""

    text: str
    task: str | None = None
    source_lang: str | None = None
    target_lang: str | None = None


def parse_text_requests(instances: Sequence[Any]) -> list[TextRequest]:
    """Strings, or objects with a string `text` and options; raises InvalidRequest."""
    check_item_count(len(instances))
    return [_parse(each, f"instances[{index}]") for index, each in enumerate(instances)]


def _parse(instance: Any, path: str) -> TextRequest:
    fields = {"text": instance} if isinstance(instance, str) else instance
    if not isinstance(fields, dict) or not isinstance(fields.get("text"), str):
        raise InvalidRequest(
            f"{path} must be a string or an object with a string 'text', was {shown(instance)}"
        )
    allowed = ("text", *OPTIONS)
    if unknown := sorted(set(fields) - set(allowed)):
        raise InvalidRequest(
            f"{path} has unknown fields {shown(unknown)}; allowed are {', '.join(allowed)}"
        )
    for name in OPTIONS:
        value = fields.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidRequest(f"{path}: {name!r} must be a string, was {shown(value)}")
    return TextRequest(**fields)


def read_text_requests(tensors: Sequence[Tensor]) -> list[TextRequest]:
    """A tensor of texts, and options with one value or one per text; raises InvalidRequest."""
    texts = single_input(tensors, "text")
    columns = {tensor.name: tensor for tensor in tensors if tensor is not texts}
    if unknown := sorted(set(columns) - set(OPTIONS)):
        raise InvalidRequest(
            f"inputs must be 'text' and optionally {', '.join(OPTIONS)}, were also {shown(unknown)}"
        )
    count = texts.data.size
    check_item_count(count)
    options = {name: _strings(tensor, count) for name, tensor in columns.items()}
    return [
        TextRequest(text, **{name: values[row] for name, values in options.items()})
        for row, text in enumerate(_strings(texts, count))
    ]


def _strings(tensor: Tensor, count: int) -> list[str]:
    if tensor.datatype != BYTES:
        raise InvalidRequest(f"input {tensor.name!r} must be BYTES, was {tensor.datatype}")
    if tensor.data.size not in {1, count}:
        raise InvalidRequest(
            f"input {tensor.name!r} must have 1 value or {count}, one per text,"
            f" has {tensor.data.size}"
        )
    try:
        values = [value.decode("utf-8") for value in tensor.data.ravel()]
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"input {tensor.name!r} must hold UTF-8, but byte {error.start} of one is not"
        ) from error
    return values if len(values) == count else values * count
