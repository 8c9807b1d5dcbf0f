"""The record of outcomes: written as a table, read again, and what is right stays right."""

from pathlib import Path

import pytest

from tests.reference.outcomes import BEGIN, END, Outcomes, read_table


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    return path


def fill(outcomes: Outcomes) -> None:
    with outcomes.judge("fill-mask", "bert"):
        pass
    for name in ("lua", "moa"):
        with outcomes.judge("fill-mask", name) as outcome:
            outcome.refuse("it has no\n  mask: none.")


def test_a_written_table_is_read_as_it_was(page: Path) -> None:
    outcomes = Outcomes(page, is_writing=True)
    fill(outcomes)
    outcomes.write()
    text = page.read_text()
    assert "- **fill-mask**: bert\n" in text
    assert "- **fill-mask**: lua, moa; refused: it has no mask: none\n" in text
    assert text.startswith("before\n")
    assert text.endswith(f"{END}\nafter\n")
    refused = dict.fromkeys(["lua", "moa"], "it has no mask: none")
    assert read_table(text) == {"fill-mask": {"bert": None, **refused}}


def test_subjects_that_a_run_leaves_out_stay(page: Path) -> None:
    first = Outcomes(page, is_writing=True)
    fill(first)
    first.write()
    second = Outcomes(page, is_writing=True)
    with second.judge("fill-mask", "lua"):
        pass
    second.write()
    assert "- **fill-mask**: bert, lua\n" in page.read_text()


def test_what_the_page_calls_right_must_not_be_refused(page: Path) -> None:
    first = Outcomes(page, is_writing=True)
    fill(first)
    first.write()
    second = Outcomes(page, is_writing=False)
    with pytest.raises(AssertionError, match="bert"), second.judge("fill-mask", "bert") as outcome:
        outcome.refuse("not today")


def test_a_wrong_answer_leaves_the_table(page: Path) -> None:
    first = Outcomes(page, is_writing=True)
    fill(first)
    first.write()
    second = Outcomes(page, is_writing=True)
    with pytest.raises(AssertionError, match="wrong"), second.judge("fill-mask", "bert"):
        raise AssertionError("wrong")
    second.write()
    assert "bert" not in read_table(page.read_text())["fill-mask"]


def test_a_subject_of_several_sections_is_listed_once(page: Path) -> None:
    outcomes = Outcomes(page, is_writing=True)
    for section, subjects in (("a, b", ["One", "Two"]), ("c, d", ["Two", "Three"])):
        for subject in subjects:
            with outcomes.judge(section, subject) as outcome:
                if subject == "Three":
                    outcome.refuse("no; never")
    outcomes.write()
    text = page.read_text()
    assert "- **a, b; c, d**: Two\n" in text
    assert "- **c, d**: Three; refused: no; never\n" in text
    assert read_table(text) == outcomes.found
