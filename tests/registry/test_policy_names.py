"""Names of policies: built-in ones, and those that installed distributions offer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.errors import PluginError
from registry.policy_names import PolicyNames
from tests.plug_ins import install, path_of_plug_ins

_GROUP = "pilotlight.test-policies"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with path_of_plug_ins(tmp_path):
        yield tmp_path


def test_names_are_the_built_in_ones_then_those_installed(folder: Path) -> None:
    install(folder, "mine", _GROUP, {"zeta": "mine:zeta", "alpha": "mine:alpha"}, "zeta = 3")
    names = PolicyNames(_GROUP, ("own-b", "own-a"))
    assert list(names) == ["own-b", "own-a", "alpha", "zeta"]
    assert "zeta" in names
    assert "own-a" in names
    assert "nu" not in names
    assert names.load("zeta") == 3


def test_a_name_that_is_not_installed_is_refused_with_those_that_are(folder: Path) -> None:
    install(folder, "mine", _GROUP, {"zeta": "mine:zeta"})
    with pytest.raises(PluginError, match="'nu' is not installed here: known are own, zeta;"):
        PolicyNames(_GROUP, ("own",)).load("nu")


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        pytest.param("import nothing_of_that_name", "ModuleNotFoundError", id="import"),
        pytest.param("", "AttributeError", id="no such function"),
        pytest.param("1 / 0", "ZeroDivisionError: division by zero", id="raises"),
        pytest.param("raise SystemExit(3)", "SystemExit: 3", id="exits"),
    ],
)
def test_what_cannot_be_imported_says_from_which_distribution(
    folder: Path, module: str, problem: str
) -> None:
    install(folder, "mine", _GROUP, {"zeta": "mine:zeta"}, module)
    with pytest.raises(PluginError, match=rf"'zeta' of mine 1\.2 .* from 'mine:zeta': {problem}"):
        PolicyNames(_GROUP).load("zeta")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        pytest.param("auto", "Pilotlight's own", id="built-in"),
        pytest.param("none", "Pilotlight's own", id="reserved"),
        pytest.param("My Policy", "lower-case", id="not a name"),
    ],
)
def test_a_name_that_cannot_be_used_is_left_out_and_said_once(
    folder: Path, name: str, problem: str
) -> None:
    install(folder, "mine", _GROUP, {name: "mine:zeta"}, "zeta = 3")
    names = PolicyNames(_GROUP, ("auto",))
    with pytest.warns(UserWarning, match=f"{name!r} of mine 1.2 .* is not used: .*{problem}"):
        assert list(names) == ["auto"]
    assert list(names) == ["auto"]  # a second warning would be an error


def test_of_two_distributions_with_one_name_the_first_is_used(folder: Path) -> None:
    install(folder, "mine", _GROUP, {"zeta": "mine:zeta"}, "zeta = 1")
    install(folder, "other", _GROUP, {"zeta": "other:zeta"}, "zeta = 2")
    with pytest.warns(UserWarning, match=r"of other 1\.2 .*: mine 1\.2 has one of that name"):
        assert PolicyNames(_GROUP).load("zeta") == 1
