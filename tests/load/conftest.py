from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def data() -> Callable[[str], Path]:
    """Where a public data file is; the test is skipped where it is not."""

    def find(name: str) -> Path:
        folder = os.environ.get("PILOTLIGHT_DATA", "")
        path = Path(folder) / name
        if not folder or not path.is_file():
            pytest.skip(f"{name} is not in PILOTLIGHT_DATA ({folder or 'not set'})")
        return path

    return find
