"""Values in messages are in JSON's words, and short."""

from typing import Any

import pytest

from common.shown_value import kind_of, shown


@pytest.mark.parametrize(
    ("value", "text", "kind"),
    [
        (None, "null", "null"),
        (True, "true", "true"),
        (False, "false", "false"),
        (3, "3", "a number"),
        (1.5, "1.5", "a number"),
        ("text", "'text'", "a string"),
        ([1, None, True], "[1, null, true]", "an array"),
        ((1, None), "[1, null]", "an array"),
        ({"a": None, "b": [False]}, "{'a': null, 'b': [false]}", "an object"),
    ],
)
def test_values_are_named_as_in_json(value: object, text: str, kind: str) -> None:
    assert (shown(value), kind_of(value)) == (text, kind)


def test_bytes_are_shown_as_their_characters() -> None:
    assert shown(b"soon\xff") == "'soonÿ'"


def test_what_aliases_expand_to_gigabytes_is_short() -> None:
    value: Any = ["x" * 10_000] * 10
    for _ in range(30):
        value = [value] * 10
    assert len(shown(value)) < 1000
    assert len(shown({f"k{index}": "x" * 10_000 for index in range(100)})) < 2000
    assert len(shown(b"x" * 1_000_000)) < 300
    assert len(shown(10**1000)) < 300
