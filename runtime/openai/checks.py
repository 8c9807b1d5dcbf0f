"""Reads OpenAI's request bodies, and says what is wrong with a field: the rule, the value seen.

Unsupported fields that would change the response are refused, and unknown ones, as OpenAI's own
servers do. Lengths are checked first; then pydantic stops at a list's first mistake, since a body
of 2 MB can hold 700,000 of them. A mistake becomes an `InvalidField`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from common.inference_protocol.bodies import parse_object
from common.shown_value import shown
from runtime.openai.requests import (
    Body,
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    InvalidField,
    ModelBody,
)

MAX_PROMPTS = 32
MAX_INPUTS = 1024
MAX_REPORTED_ERRORS = 3
MAX_TEXTS = 128
"""Choices of all prompts of a request together."""
MAX_PARTS = 16_384
"""Parts of all messages together."""

_RULES: Final[Mapping[str, str]] = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "an array",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "{le} or less",
    "less_than": "less than {lt}",
    "finite_number": "a finite number",
    "string_too_short": "at least {min_length} character long",
    "string_too_long": "at most {max_length} characters long",
    "too_short": "at least {min_length} item long",
}
"""By pydantic's type of error, with the names of its context."""


def parse_openai_body(kind: type[Body], content: bytes) -> Body:
    """A checked body; raises InvalidField naming up to three mistakes."""
    document = parse_object(content)
    _check_lengths(kind, document)
    for field, neutral in kind.unsupported.items():
        value = document.get(field)
        if value is not None and value not in neutral:
            raise InvalidField(_unsupported(field, value, neutral), param=field)
    known = kind.model_fields.keys() | kind.unsupported.keys() | kind.ignored
    for field in document:
        if field not in known and document[field] is not None:
            raise InvalidField(
                f"unknown field {shown(field)}; omit it", param=field, code="unknown_parameter"
            )
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise _invalid_field(error, document) from error


def _check_lengths(kind: type[ModelBody], document: Mapping[str, Any]) -> None:
    for field, allowed in kind.max_items.items():
        value = document.get(field)
        if isinstance(value, list) and len(value) > allowed:
            raise InvalidField(f"{field} may have {allowed} items, has {len(value)}", param=field)
    if kind is CompletionBody:
        _check_prompts(document.get("prompt"), document.get("n"))
    inputs = document.get("input")
    if kind is EmbeddingBody and isinstance(inputs, list):
        _check_inputs(inputs)
    messages = document.get("messages")
    if kind is ChatBody and isinstance(messages, list):
        parts = sum(map(_count_parts, messages))
        if parts > MAX_PARTS:
            raise InvalidField(
                f"all messages together may have {MAX_PARTS} parts, have {parts}", param="messages"
            )


def _check_inputs(inputs: list[Any]) -> None:
    if _is_several(inputs) and len(inputs) > MAX_INPUTS:
        raise InvalidField(f"input may have {MAX_INPUTS} items, has {len(inputs)}", param="input")


def _check_prompts(prompt: Any, choices: Any) -> None:
    if not isinstance(prompt, list) or not _is_several(prompt):
        return
    if len(prompt) > MAX_PROMPTS:
        raise InvalidField(
            f"a request may have {MAX_PROMPTS} prompts, has {len(prompt)}", param="prompt"
        )
    texts = len(prompt) * (choices if isinstance(choices, int) else 1)
    if texts > MAX_TEXTS:
        raise InvalidField(f"prompts times n may be {MAX_TEXTS} at most, was {texts}", param="n")


def _is_several(value: list[Any]) -> bool:
    """Whether it has texts or lists of tokens, in place of the tokens of one text."""
    return bool(value) and not isinstance(value[0], int)


def _count_parts(message: Any) -> int:
    content = message.get("content") if isinstance(message, dict) else None
    return len(content) if isinstance(content, list) else 0


def _unsupported(field: str, value: Any, neutral: tuple[Any, ...]) -> str:
    if not neutral:
        return f"{field!r} is not supported; omit it"
    allowed = " or ".join(map(repr, neutral))
    return f"{field!r} is not supported; omit it, or set it to {allowed}, was {shown(value)}"


def _invalid_field(error: ValidationError, document: Mapping[str, Any]) -> InvalidField:
    problems = error.errors(include_url=False, include_input=False)
    message = describe_errors(problems, document, limit=MAX_REPORTED_ERRORS)
    return InvalidField(message, param=first_field(problems[0]))


def first_field(error: ErrorDetails) -> str:
    return str(error["loc"][0])


def describe_errors(errors: Sequence[ErrorDetails], document: Any, *, limit: int) -> str:
    """Up to `limit` mistakes; the forms that a field may have are one mistake."""
    rules: dict[str, list[str]] = {}
    values: dict[str, Any] = {}
    for error in errors:
        path, value = _resolve(error["loc"], document)
        if error["type"] == "missing":
            rules[f"{path}.{error['loc'][-1]}".lstrip(".")] = []
            continue
        rule = _rule(error)
        if rule not in rules.setdefault(path, []):
            rules[path].append(rule)
        values[path] = value
    return "; ".join(
        f"{path} must be {' or '.join(each)}, was {shown(values[path])}"
        if each
        else f"{path} is required"
        for path, each in list(rules.items())[:limit]
    )


def _rule(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    if error["type"] == "string_pattern_mismatch":
        words = str(context["pattern"]).strip("^$()").split("|")
        return " or ".join(map(repr, words))
    rule = _RULES.get(error["type"])
    return error["msg"] if rule is None else rule.format(**context)


def _resolve(location: Sequence[int | str], document: Any) -> tuple[str, Any]:
    """Path and value of a mistake; parts that name a form of the field are left out."""
    path, value = "", document
    for part in location:
        if isinstance(part, str) and isinstance(value, dict) and part in value:
            path, value = f"{path}.{part}" if path else part, value[part]
        elif isinstance(part, int) and isinstance(value, list) and part < len(value):
            path, value = f"{path}[{part}]", value[part]
    return path, value
