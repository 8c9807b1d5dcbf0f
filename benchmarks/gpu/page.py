"""The sections of `docs/benchmarks.md` that runs on a GPU replace."""

from typing import Final

PARTS: Final = ("copies", "serving", "sharing")
NOTHING: Final = "No GPU has run any of this."


def with_section(page: str, part: str, content: str) -> str:
    """The page with this content between the part's markers; raises ValueError without them."""
    opening = f"<!-- gpu {part}: written by make bench-gpu -->"
    closing = f"<!-- end of gpu {part} -->"
    before, begin, rest = page.partition(opening)
    _, end, after = rest.partition(closing)
    if not (begin and end):
        raise ValueError(f"docs/benchmarks.md must have the lines {opening!r} and {closing!r}")
    return f"{before}{begin}\n\n{content.strip()}\n\n{end}{after}"
