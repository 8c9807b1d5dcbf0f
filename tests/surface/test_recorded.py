"""The comparison itself."""

from pathlib import Path

import pytest

from tests.surface.recorded import VARIABLE, assert_recorded


@pytest.fixture(autouse=True)
def _compares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_accepts_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as writing:
        writing.setenv(VARIABLE, "write")
        assert_recorded("some", ["one", "two"], folder=tmp_path)
    assert_recorded("some", ["one", "two"], folder=tmp_path)


def test_shows_the_difference_and_how_to_write_the_file_anew(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("one\ntwo\n")
    with pytest.raises(AssertionError) as caught:
        assert_recorded("some", ["one", "three"], folder=tmp_path)
    message = str(caught.value)
    assert "-two\n+three\n" in message
    assert f"{VARIABLE}=write" in message


def test_refuses_a_surface_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="new has another surface"):
        assert_recorded("new", ["one"], folder=tmp_path)
