"""A value in a message: bounded, and in the words of JSON, which clients sent, not of Python.

Bounded in time as well: a few nested YAML aliases can expand to gigabytes.
"""

import json
import reprlib
from typing import Final

MAX_CHARACTERS: Final = 200
"""Of a text or a number; of arrays and objects the first items of two levels are shown."""


class _Words(reprlib.Repr):
    """Python's writing of numbers, texts, arrays and objects is that of JSON, but for quotes."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = MAX_CHARACTERS
        self.maxlevel = 2

    def repr_NoneType(self, _: None, __: int) -> str:
        return "null"

    def repr_bool(self, value: bool, _: int) -> str:
        return json.dumps(value)

    def repr_bytes(self, value: bytes, level: int) -> str:
        return self.repr_str(value[: MAX_CHARACTERS + 1].decode("latin-1"), level)

    def repr_tuple(self, value: tuple[object, ...], level: int) -> str:
        return self.repr_list(list(value), level)


def shown(value: object) -> str:
    """`null`, `true`, `1.5`, `'text'`, `[1, 2]`, `{'name': 1}`; bytes as their characters."""
    return _Words().repr(value)


def kind_of(value: object) -> str:
    """Which of JSON's kinds of values it is; null, true and false stand for themselves."""
    match value:
        case None | bool():
            return json.dumps(value)
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case dict():
            return "an object"
        case _:
            return "an array"


def json_fault(error: ValueError) -> str:
    """Why orjson could not read a document, which it calls `str` where that is no UTF-8."""
    return str(error).replace("str is not valid UTF-8: surrogates not allowed", "not UTF-8")
