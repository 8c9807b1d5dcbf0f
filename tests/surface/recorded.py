"""Compares what is seen from outside with a text file beside this module, or writes the file."""

import difflib
import os
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from tests.servers import REPOSITORY

VARIABLE: Final = "PILOTLIGHT_SURFACE"
FOLDER: Final = Path(__file__).parent


def assert_recorded(name: str, lines: Iterable[str], *, folder: Path = FOLDER) -> None:
    """Fail with the difference if `NAME.txt` has other lines; or write it, as VARIABLE says."""
    _require_plug_ins()
    path = folder / f"{name}.txt"
    found = [f"{line.rstrip()}\n" for line in lines]
    if os.environ.get(VARIABLE) == "write":
        path.write_text("".join(found))
        return
    known = path.read_text().splitlines(keepends=True) if path.exists() else []
    if found == known:
        return
    difference = "".join(difflib.unified_diff(known, found, str(path), "now"))
    raise AssertionError(
        f"{name} has another surface than was recorded:\n{difference}\n"
        f"If the change is meant, write the file anew and commit it:\n"
        f"{VARIABLE}=write python -m pytest tests/surface"
    )


@cache
def _require_plug_ins() -> None:
    """Names of policies are part of the surface, those of research included."""
    text = (REPOSITORY / "research" / "pyproject.toml").read_text()
    groups = tomllib.loads(text)["project"]["entry-points"]
    wanted = {(group, name) for group, names in groups.items() for name in names}
    found = {
        (each.group, each.name)
        for known in distributions(name="pilotlight-research")
        for each in known.entry_points
    }
    assert found == wanted, (
        "research is not installed here as it is now: make install, or "
        "uv pip install --no-deps --no-build-isolation -e research"
    )
