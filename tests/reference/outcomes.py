"""What the suite finds of each kind of model, and the tables of docs/compatibility.md made of it.

The tables are also what the suite expects: a model that was right may not become refused unseen.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

BEGIN = "<!-- Made by `make test-reference DOCS=1`. -->"
END = "<!-- End of what the suite made. -->"
_WIDTH = 160
_LONG = 20
"""Subjects above which a section is named instead of listed again."""
_ALL_OF = "all of "

Table = dict[str, dict[str, str | None]]
"""By section and subject: None if answers are right, else the reason of the refusal."""


@dataclass
class Outcome:
    """Of one subject, such as an architecture, while it is compared: right unless refused."""

    refusal: str | None = None

    def refuse(self, reason: str) -> None:
        """State that the model was refused when it was loaded; the reason is shown in the table."""
        self.refusal = _one_line(reason)


@dataclass
class Outcomes:
    """All outcomes of a run, beside what the page says."""

    page: Path
    is_writing: bool
    found: Table = field(default_factory=lambda: defaultdict(dict))
    wrong: set[tuple[str, str]] = field(default_factory=set)
    expected: Table = field(init=False)

    def __post_init__(self) -> None:
        """Read what the page says now."""
        self.expected = read_table(self.page.read_text())

    @contextmanager
    def judge(self, section: str, subject: str) -> Iterator[Outcome]:
        """Compare one subject inside the block, which raises if an answer is wrong.

        A subject that the page calls right must not be refused, unless the page is written anew.
        """
        outcome = Outcome()
        try:
            yield outcome
        except BaseException:
            self.wrong.add((section, subject))
            raise
        refusal = outcome.refusal and outcome.refusal.replace(f"the {subject} ", "it ")
        self.found[section][subject] = refusal
        known = self.expected.get(section, {})
        if refusal is not None and subject in known and not self.is_writing:
            assert known[subject] is not None, (
                f"{self.page.name} says that {subject} ({section}) answers rightly, but it was"
                f" refused: {refusal}"
            )

    def write(self) -> None:
        """Bring the page up to date: wrong subjects go, those that this run left out stay."""
        text = self.page.read_text()  # another run may have written it meanwhile
        merged = read_table(text)
        for section, subjects in self.found.items():
            merged.setdefault(section, {}).update(subjects)
        for section, subject in self.wrong:
            merged.get(section, {}).pop(subject, None)
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        self.page.write_text(f"{before}{BEGIN}\n\n{render(merged)}\n{END}{after}")


def render(table: Mapping[str, Mapping[str, str | None]]) -> str:
    """The subjects of each section, with the number of those that are right."""
    lines: list[str] = []
    for section in sorted(table):
        right, refused = _split(table[section])
        lines += ["", f"**{section}**, {len(right)} right: {_names(table, section) or 'none'}.", ""]
        by_reason: dict[str, list[str]] = defaultdict(list)
        for subject, reason in refused.items():
            by_reason[reason].append(subject)
        lines += [
            f"- refused: {', '.join(subjects)}: {reason}"
            for reason, subjects in sorted(by_reason.items(), key=lambda each: each[1])
        ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _names(table: Mapping[str, Mapping[str, str | None]], section: str) -> str:
    """What is right; of a long section that is a part of it, only that section's name."""
    right, _ = _split(table[section])
    for other in sorted(table):
        part, _ = _split(table[other])
        if len(part) > _LONG and set(part) < set(right):
            right = [f"{_ALL_OF}**{other}**", *sorted(set(right) - set(part))]
            break
    return ", ".join(right)


def read_table(text: str) -> Table:
    """What a page with a rendered table says."""
    _, _, rest = text.partition(BEGIN)
    table: Table = {}
    parts: dict[str, str] = {}
    subjects: dict[str, str | None] = {}
    for line in rest.partition(END)[0].splitlines():
        if named := re.fullmatch(r"\*\*(.+)\*\*, \d+ right: (.+)\.", line):
            subjects = table.setdefault(named[1], {})
            if part := re.match(rf"{_ALL_OF}\*\*(.+?)\*\*(?:, )?", named[2]):
                parts[named[1]] = part[1]
            names = named[2][part.end() if part else 0 :].split(", ")
            subjects.update({name: None for name in names if name not in ("", "none")})
        elif refused := re.fullmatch(r"- refused: (.+?): (.+)", line):
            subjects.update(dict.fromkeys(refused[1].split(", "), refused[2]))
    for _ in parts:  # a part may have one itself
        for section, other in parts.items():
            table[section].update(dict.fromkeys(_split(table[other])[0]))
    return table


def _split(subjects: Mapping[str, str | None]) -> tuple[list[str], dict[str, str]]:
    right = sorted(name for name, reason in subjects.items() if reason is None)
    refused = {name: reason for name, reason in sorted(subjects.items()) if reason is not None}
    return right, refused


def _one_line(reason: str) -> str:
    text = " ".join(reason.split()).replace("<", "&lt;").rstrip(".")
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH].rsplit(' ', 1)[0]} …"
