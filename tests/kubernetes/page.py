"""The command blocks of docs/install.md, with what the page's source says of running them."""

import re
from dataclasses import dataclass
from itertools import pairwise
from textwrap import dedent

from tests.kubernetes.places import REPOSITORY

PAGE = REPOSITORY / "docs" / "install.md"
MARK = re.compile(r"<!-- (?:with (?P<tool>Helm|kustomize)|not run: (?P<reason>\S.{9,})) -->")
"""Above a block of the page: the one way of installing that it belongs to, or why it is not run."""


@dataclass(frozen=True, slots=True)
class Block:
    """Indented lines of the page, and the paragraph above them."""

    text: str
    above: str

    @property
    def tool(self) -> str:
        """Helm or kustomize; empty: both."""
        mark = MARK.fullmatch(self.above)
        return (mark["tool"] or "") if mark else ""

    @property
    def is_run(self) -> bool:
        mark = MARK.fullmatch(self.above)
        return mark is None or not mark["reason"]


def blocks() -> list[Block]:
    """All blocks of the page in its order: each is run, unless a mark says why not."""
    parts = re.split(r"\n{2,}", PAGE.read_text())
    return [
        Block(dedent(text).strip(), above.strip())
        for above, text in pairwise(parts)
        if text.startswith("    ")
    ]
