"""The examples in docs/load.md have the arrivals that the page states."""

import os
from pathlib import Path

import pytest

from load.synthetic import GENERATORS
from load.trace_spec import TRANSFORMS, open_trace
from load.traces.batches import summarise
from load.traces.trace_formats import formats

PAGE = (Path(__file__).parents[3] / "docs" / "load.md").read_text()
EXAMPLES = [
    line.strip().removesuffix(" arrivals").partition("  → ")
    for line in PAGE.splitlines()
    if "  → " in line
]


@pytest.mark.parametrize(("name", "_", "arrivals"), EXAMPLES)
def test_examples_run(monkeypatch: pytest.MonkeyPatch, name: str, _: str, arrivals: str) -> None:
    if ".gz" in name:
        folder = os.environ.get("PILOTLIGHT_DATA", "")
        if not folder or not Path(folder).is_dir():
            pytest.skip(f"PILOTLIGHT_DATA is {folder or 'not set'}")
        monkeypatch.chdir(folder)
    assert f"{summarise(open_trace(name, seed=1)).arrivals:,}" == arrivals


@pytest.mark.parametrize("name", [*formats(), *GENERATORS])
def test_every_source_is_described(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", TRANSFORMS)
def test_every_transformation_is_described(name: str) -> None:
    assert f"`{name}=" in PAGE
