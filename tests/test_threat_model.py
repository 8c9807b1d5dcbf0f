"""Each line of the threat model's table of rights names a test that exists."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "threat-model.md"


def rows() -> list[str]:
    table = PAGE.read_text().partition("## Who may do what")[2].partition("\n## ")[0]
    return [line for line in table.splitlines() if line.startswith("| ")][1:]


def test_each_line_of_who_may_do_what_names_a_test_that_exists() -> None:
    for row in rows():
        named = re.search(r"`(test_\w+\.py): (test_\w+)` \|$", row)
        assert named, row
        files = [file.read_text() for file in TESTS.rglob(named[1])]
        assert any(re.search(rf"^(async )?def {named[2]}\(", each, re.M) for each in files), row


def test_the_table_has_everyone() -> None:
    text = "\n".join(row.split("|")[1] for row in rows())
    for who in ("gateway", "pod", "autoscaler", "controller", "tenant", "stranger"):
        assert who in text
