"""The workflows that a file defines, and their parameters."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TYPES: Final = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "boolean",
    list: "list",
    dict: "object",
}


class BadDefinitionError(Exception):
    """A file that defines no workflow that can be run; says why."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """An asynchronous function, or an asynchronous generator, that calls models."""

    function: Callable[..., Any]
    deadline_s: float | None = None
    """From the arrival of a request; None: the scheduler's limit."""

    @property
    def is_stream(self) -> bool:
        return inspect.isasyncgenfunction(self.function)

    def parameters(self) -> list[dict[str, Any]]:
        """Name, type and whether it is required, of each parameter.

        Raises BadDefinitionError for parameters that JSON arguments cannot fill.
        """
        found = []
        for parameter in inspect.signature(self.function).parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise BadDefinitionError(
                    f"parameter {parameter.name!r} of {self.function.__name__} must be a plain one"
                )
            found.append(
                {
                    "name": parameter.name,
                    "type": _type_name(parameter.annotation),
                    "required": parameter.default is parameter.empty,
                }
            )
        return found


def _type_name(annotation: object) -> str:
    """One of the words that arguments are checked by; `any` for all other annotations."""
    if isinstance(annotation, str):  # `from __future__ import annotations`
        by_text = {kind.__name__: word for kind, word in _TYPES.items()}
        return by_text.get(annotation.partition("[")[0], "any")
    origin = getattr(annotation, "__origin__", annotation)
    return next((word for kind, word in _TYPES.items() if origin is kind), "any")


def parse_deadline(text: object) -> float:
    """Seconds of a duration such as `10s`. Raises BadDefinitionError."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None or float(match[1]) <= 0:
        raise BadDefinitionError(f"deadline must be a duration such as '10s', was {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def define(function: Callable[..., Any], deadline: str | None) -> Workflow:
    """A workflow of a function. Raises BadDefinitionError for one that is not asynchronous."""
    if not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
        raise BadDefinitionError(
            f"{getattr(function, '__name__', function)!r} must be defined with `async def`"
        )
    return Workflow(function, None if deadline is None else parse_deadline(deadline))
