"""Profiles: a small synthetic set, and Elvinger 2024, table A.1, where the data folder has it."""

import os
from pathlib import Path

import pytest

from autoscaler.placement.problem import Profiles
from research.placement.profile_csv import read_profiles

KIND = "v100"


def _read(path: Path) -> Profiles:
    lines = path.read_text(encoding="utf-8").splitlines()
    return Profiles(read_profiles(lines, kind=KIND, file=path.name))


@pytest.fixture(scope="session")
def synthetic() -> Profiles:
    return _read(Path(__file__).with_name("synthetic_profiles.csv"))


@pytest.fixture(scope="session")
def v100() -> Profiles:
    folder = os.environ.get("PILOTLIGHT_DATA", "")
    path = Path(folder) / "v100_profiles.csv"
    if not folder or not path.is_file():
        pytest.skip(f"{path.name} is not in PILOTLIGHT_DATA ({folder or 'not set'})")
    return _read(path)
