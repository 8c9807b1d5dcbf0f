"""A value in a message, bounded: a few nested YAML aliases can expand to gigabytes."""

from __future__ import annotations

import reprlib


def shorten(value: object) -> str:
    short = reprlib.Repr()
    short.maxstring = short.maxother = 200
    short.maxlevel = 2
    return short.repr(value)
