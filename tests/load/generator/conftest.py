"""The servers of the gateway tests, the command line, runs and traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.gateway.conftest import client, harness, pool, shared_gateway
from tests.pilotlight.conftest import Cli, CommandResult, cli

__all__ = ["cli", "client", "harness", "pool", "shared_gateway"]


@pytest.fixture
def load_run(cli: Cli, tmp_path: Path) -> LoadRun:
    return LoadRun(cli, tmp_path / "run.parquet")


class LoadRun:
    """`load run` in this process, and the records that it writes."""

    def __init__(self, cli: Cli, output: Path) -> None:
        self._cli = cli
        self.output = output

    def __call__(self, trace: str, url: str, *flags: str) -> CommandResult:
        arguments = ("--trace", trace, "--url", url, "-o", str(self.output))
        return self._cli("load", "run", *arguments, *flags)

    def records(self, trace: str, url: str, *flags: str) -> list[dict[str, Any]]:
        """The records of a successful run."""
        ran = self(trace, url, *flags)
        assert ran.status == 0, ran.err
        rows: list[dict[str, Any]] = parquet.read_table(self.output).to_pylist()
        return rows


@pytest.fixture
def write_trace(tmp_path: Path) -> WriteTrace:
    return WriteTrace(tmp_path)


class WriteTrace:
    """Writes traces as CSV."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self,
        models: list[str],
        *,
        count: int,
        gap_s: float,
        deadline_s: float | None = None,
        tenant: str = "default",
        output_size: int = 0,
    ) -> str:
        """A trace of `count` arrivals, a model after the other; returns its path."""
        lines = ["at_s,tenant,model,input_size,output_size,deadline_s"]
        for row in range(count):
            deadline = "" if deadline_s is None else f"{deadline_s}"
            model = models[row % len(models)]
            lines.append(f"{row * gap_s:.6f},{tenant},{model},2,{output_size},{deadline}")
        path = self._folder / "trace.csv"
        path.write_text("\n".join(lines) + "\n")
        return str(path)
