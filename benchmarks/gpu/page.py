"""The section of `docs/benchmarks.md` that a run on a GPU replaces."""

from __future__ import annotations

from typing import Final

BEGIN: Final = "<!-- gpu: written by make bench-gpu -->"
END: Final = "<!-- end of gpu -->"


def with_section(page: str, content: str) -> str:
    """The page with this content between its markers; raises ValueError without them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"docs/benchmarks.md must have the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{content.strip()}\n\n{END}{after}"
