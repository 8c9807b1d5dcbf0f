"""The gateway tests' servers, the command line, and traces to play."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.gateway.conftest import client, harness, pool, shared_gateway
from tests.pilotlight.conftest import cli

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["cli", "client", "harness", "pool", "shared_gateway"]


@pytest.fixture
def write_trace(tmp_path: Path) -> WriteTrace:
    return WriteTrace(tmp_path)


class WriteTrace:
    """Writes traces as CSV."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self, models: list[str], *, count: int, gap_s: float, deadline_s: float | None = None,
        tenant: str = "default", output_size: int = 0,
    ) -> str:  # fmt: skip
        """A trace of `count` arrivals, a model after the other; returns its path."""
        lines = ["at_s,tenant,model,input_size,output_size,deadline_s"]
        for row in range(count):
            deadline = "" if deadline_s is None else f"{deadline_s}"
            model = models[row % len(models)]
            lines.append(f"{row * gap_s:.6f},{tenant},{model},2,{output_size},{deadline}")
        path = self._folder / "trace.csv"
        path.write_text("\n".join(lines) + "\n")
        return str(path)
