"""Settings tables: one dataclass defines flags, environment variables, defaults and help.

Every component declares a frozen dataclass with fields made by `option`, and reads it once at
start: flag over environment over default. All mistakes are reported together. Its other fields
are for code that starts the component: no flag or variable sets them.
"""

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

Settings = TypeVar("Settings")


def option(
    default: object,
    parse: Callable[[str], object],
    help_text: str,
    *,
    is_required: bool = False,
    variable: str | None = None,
) -> Any:
    """A field with its parser, which raises ValueError, and its help text.

    `variable`: its environment variable, else `PILOTLIGHT_` and the name in capitals.
    """
    metadata = {"parse": parse, "help": help_text, "is_required": is_required, "variable": variable}
    return dataclasses.field(default=default, metadata=metadata)


def parse_bool(text: str) -> bool:
    """Raises ValueError."""
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError(f"must be true or false, was {text!r}")


def parse_choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}, was {text[:40]!r}")
        return text

    return parse


def parse_int(low: int, high: int | None = None) -> Callable[[str], int]:
    """A parser of whole numbers within bounds."""
    allowed = f"from {low} to {high}" if high is not None else f"of at least {low}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"must be a whole number {allowed}, was {text!r}") from None
        if value < low or (high is not None and value > high):
            raise ValueError(f"must be a whole number {allowed}, was {text!r}")
        return value

    parse.bounds = (low, high)  # type: ignore[attr-defined]  # for those who show them
    return parse


def parse_positive(text: str, *, unit: str = "") -> float:
    """A positive, finite number. Raises ValueError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise ValueError(f"must be a positive number{unit}, was {text!r}")
    return value


def parse_seconds(text: str) -> float:
    return parse_positive(text, unit=" of seconds")


def options(kind: type[Any]) -> list[dataclasses.Field[Any]]:
    """The fields that flags and variables set."""
    return [each for each in dataclasses.fields(kind) if each.metadata]


def _variable(field: dataclasses.Field[Any]) -> str:
    return field.metadata["variable"] or f"PILOTLIGHT_{field.name.upper()}"


def read_settings(
    kind: type[Settings], arguments: Sequence[str], environment: Mapping[str, str], *, prog: str
) -> Settings:
    """Settings from flags, environment and defaults; exits with status 2 on mistakes."""
    parser = argparse.ArgumentParser(prog=prog, description=kind.__doc__)
    fields = options(kind)
    for each in fields:
        flag = "--" + each.name.replace("_", "-")
        text = f"{each.metadata['help']} (environment {_variable(each)})".replace("%", "%%")
        if isinstance(each.default, bool):
            parser.add_argument(
                flag, dest=each.name, nargs="?", const="true", metavar="BOOL", help=text
            )
        else:
            parser.add_argument(flag, dest=each.name, help=text)
    given = vars(parser.parse_args(arguments))
    texts = {
        each.name: value
        for each in fields
        if (value := given[each.name]) is not None
        or (value := environment.get(_variable(each))) is not None
    }
    try:
        return settings_from_fields(kind, texts)
    except ValueError as error:
        parser.error(str(error))


def settings_from_fields(kind: type[Settings], values: Mapping[str, object]) -> Settings:
    """Settings by field name, options as texts. Raises ValueError with all mistakes together."""
    fields = {each.name: each for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    problems = [f"unknown setting {name!r}" for name in values if name not in fields]
    problems += [
        f"--{name.replace('_', '-')} is required, or {_variable(each)}"
        for name, each in fields.items()
        if each.metadata.get("is_required") and not values.get(name)
    ]
    parsed = {name: value for name, value in values.items() if name in fields}
    for name in parsed.keys() & {each.name for each in options(kind)}:
        try:
            parsed[name] = fields[name].metadata["parse"](str(values[name]))
        except ValueError as error:
            problems.append(f"--{name.replace('_', '-')} {error}")
    if problems:
        raise ValueError("; ".join(sorted(problems)))
    return kind(**parsed)


def as_flags(values: Mapping[str, object]) -> list[str]:
    """The command line for settings by field name; empty ones and None are left out."""
    words: list[str] = []
    for name, value in values.items():
        if value not in (None, ""):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words
