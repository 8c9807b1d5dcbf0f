"""The verbs of `pilotlight` with their options and arguments: names, types, choices, defaults."""

from collections.abc import Iterator
from enum import Enum
from typing import Any

from typer.main import get_command

from pilotlight.cli import create_app, words_of
from tests.surface.recorded import assert_recorded


def _lines(command: Any, path: str) -> Iterator[str]:
    words = "".join(f", {word}" for word in words_of(command))
    yield path + words + (" (hidden)" if command.hidden else "")
    for parameter in command.params:
        yield f"    {_described(parameter)}"
    for name, each in sorted(getattr(command, "commands", {}).items()):
        yield from _lines(each, f"{path} {name}")


def _described(parameter: Any) -> str:
    names = "/".join([*parameter.opts, *parameter.secondary_opts])
    words = [names, _type(parameter), f"default {_default(parameter.default)}"]
    words += [
        name for name in ("required", "multiple", "hidden") if getattr(parameter, name, False)
    ]
    if parameter.nargs != 1:
        words.append(f"nargs {parameter.nargs}")
    if parameter.envvar:
        words.append(f"environment {parameter.envvar}")
    return ", ".join(words)


def _type(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {'|'.join(str(each.value) for each in kind)}"
    name = "flag" if getattr(parameter, "is_flag", False) else getattr(kind, "__name__", str(kind))
    name = str(kind) if "[" in str(kind) else name
    low, high = parameter.min, parameter.max
    return name if low is None and high is None else f"{name} from {low} to {high}"


def _default(value: Any) -> str:
    return "computed" if callable(value) else str(getattr(value, "value", value))


def test_verbs_and_their_parameters_are_as_recorded() -> None:
    assert_recorded("command_line", _lines(get_command(create_app()), "pilotlight"))
