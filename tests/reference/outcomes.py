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
_BESIDE = "; "
"""Between the sections of a line."""

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
        self.page.write_text(f"{before}{BEGIN}\n\n{render(merged)}\n\n{END}{after}")


def render(table: Mapping[str, Mapping[str, str | None]]) -> str:
    """Each subject once, with the sections in which it is right, or refused for a reason."""
    right: dict[str, set[str]] = defaultdict(set)
    refused: dict[tuple[str, str], set[str]] = defaultdict(set)
    for section, subjects in table.items():
        for subject, reason in subjects.items():
            place = right[subject] if reason is None else refused[subject, reason]
            place.add(section)
    named = [(sections, "", subject) for subject, sections in right.items()]
    named += [(sections, reason, subject) for (subject, reason), sections in refused.items()]
    lines: dict[tuple[str, str], list[str]] = defaultdict(list)
    for sections, reason, subject in sorted(named, key=lambda each: (sorted(each[0]), each[1:])):
        lines[_BESIDE.join(sorted(sections)), reason].append(subject)
    return "\n".join(
        f"- **{sections}**: {', '.join(subjects)}{f'; refused: {reason}' if reason else ''}"
        for (sections, reason), subjects in lines.items()
    )


def read_table(text: str) -> Table:
    """What a page with a rendered table says."""
    _, _, rest = text.partition(BEGIN)
    table: Table = {}
    for line in rest.partition(END)[0].splitlines():
        if named := re.fullmatch(r"- \*\*(.+)\*\*: (.+?)(?:; refused: (.+))?", line):
            for section in named[1].split(_BESIDE):
                table.setdefault(section, {}).update(dict.fromkeys(named[2].split(", "), named[3]))
    return table


def _one_line(reason: str) -> str:
    text = " ".join(reason.split()).replace("<", "&lt;").rstrip(".")
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH].rsplit(' ', 1)[0]} …"
