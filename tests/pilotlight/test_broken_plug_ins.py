"""Plug-ins that cannot be used: the rest of the command line works, and theirs says why."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pilotlight.conftest import Cli
from tests.plug_ins import install, path_of_plug_ins

_UNUSABLE = [
    pytest.param("raise ImportError('no libfoo')", "ImportError: no libfoo", id="import"),
    pytest.param("raise SystemExit(3)", "SystemExit: 3", id="exits"),
    pytest.param("thing = 5", ", was 5", id="another object"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with path_of_plug_ins(tmp_path):
        yield tmp_path


@pytest.mark.parametrize(("module", "problem"), _UNUSABLE)
def test_a_verb_that_cannot_be_used_leaves_the_others(
    cli: Cli, folder: Path, module: str, problem: str
) -> None:
    install(folder, "mine", "pilotlight.commands", {"squares": "mine:thing"}, module)
    whole = cli("--help")
    assert whole.status == 0
    assert "make-model" in whole.out
    assert "left out: plug-in 'squares'" in whole.err
    assert problem in whole.err
    alone = cli("squares")
    assert alone.status == 1
    assert "plug-in 'squares'" in alone.err
    assert problem in alone.err


@pytest.mark.parametrize(("module", "problem"), _UNUSABLE)
def test_an_experiment_that_cannot_be_used_is_listed_with_the_reason(
    cli: Cli, folder: Path, module: str, problem: str
) -> None:
    install(folder, "mine", "pilotlight.experiments", {"squares": "mine:thing"}, module)
    listed = cli("experiment")
    assert listed.status == 0
    assert "WHAT IT SHOWS" in listed.out
    assert problem in next(line for line in listed.out.splitlines() if "squares" in line)
    ran = cli("experiment", "squares")
    assert ran.status == 1
    assert problem in ran.err
