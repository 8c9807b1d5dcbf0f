"""String literals in the source of the product, with the packages that have them."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final, NamedTuple

from tests.servers import REPOSITORY

PACKAGES: Final = sorted(
    each.parent.name
    for each in REPOSITORY.glob("*/__init__.py")
    if each.parent.name not in {"tests", "benchmarks", "research"}
)
_DOCSTRING: Final = re.compile(r'^ *r?""".*?"""', re.DOTALL | re.MULTILINE)
_BLOCK: Final = re.compile('""".*?"""', re.DOTALL)
_LITERAL: Final = re.compile(r'((?:\bheaders(?:\.get)?[\[(])?(?<!\w)[bfr]?)"((?:[^"\\\n]|\\.)*)"')


class Literal(NamedTuple):
    before: str
    """Its prefix; `headers[` or `headers.get(`, where it is the name of a header that is read."""
    text: str


def _one_line(block: re.Match[str]) -> str:
    inner = block[0][3:-3].replace('"', " ").replace("\n", "\\n")
    return f'"{inner}"'


@cache
def _literals() -> dict[str, frozenset[Literal]]:
    """Of each package, without docstrings. By patterns: to parse all files takes seconds."""
    return {
        package: frozenset(
            Literal(*found)
            for file in (REPOSITORY / package).rglob("*.py")
            for found in _LITERAL.findall(
                _BLOCK.sub(_one_line, _DOCSTRING.sub("", file.read_text()))
            )
        )
        for package in PACKAGES
    }


def names_in_packages(names_of: Callable[[Literal], Iterable[str]]) -> list[str]:
    """A line for each name that `names_of` finds in literals: `NAME: PACKAGES`."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for package, literals in _literals().items():
        for name in {name for literal in literals for name in names_of(literal)}:
            found[name].append(package)
    return [f"{name}: {' '.join(packages)}" for name, packages in sorted(found.items())]
