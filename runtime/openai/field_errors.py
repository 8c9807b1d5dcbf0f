"""What is wrong with a field of an OpenAI body, in words: the rule, and the value seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from common.shown_value import shown

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

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
