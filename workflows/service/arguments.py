"""Checks a request's arguments against a workflow's parameters. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from registry.shown_value import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "text": lambda value: isinstance(value, str),
    "whole number": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "list": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def argument_problems(
    parameters: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]
) -> list[str]:
    """What is wrong with the arguments, one line each; empty: nothing."""
    known = {str(each["name"]): each for each in parameters}
    allowed = ", ".join(known) or "none"
    problems = [
        f"unknown argument {name!r}; the workflow takes: {allowed}"
        for name in arguments
        if name not in known
    ]
    for name, parameter in known.items():
        if name not in arguments:
            if parameter["required"]:
                problems.append(f"argument {name!r} ({parameter['type']}) is missing")
            continue
        check = _CHECKS.get(str(parameter["type"]))
        if check is not None and not check(arguments[name]):
            problems.append(
                f"argument {name!r} must be a {parameter['type']}, was {shown(arguments[name])}"
            )
    return problems
