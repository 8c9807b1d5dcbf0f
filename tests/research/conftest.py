"""The command line in this process. All tests here are slow: research is no part of the product."""

from pathlib import Path

import pytest

from tests.pilotlight.conftest import cli

__all__ = ["cli"]


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
