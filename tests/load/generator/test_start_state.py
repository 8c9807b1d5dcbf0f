"""What is done last before a run's first request, and what it says of the models."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from load.generator.records import claimed_output
from load.generator.run import prepare, run_trace
from load.generator.settings import RunSettings
from load.report.run_file import read_run
from tests.load.generator.conftest import WriteTrace
from tests.load.generator.odd_server import odd_server


async def play(trace: str, url: str, output: Path, start: Callable[[], Awaitable[str]]) -> None:
    prepared = await prepare(RunSettings(trace, url))
    with claimed_output(output, overwrite=False):
        await run_trace(
            prepared, output, stop=asyncio.Event(), on_progress=lambda _: None, start=start
        )


def test_the_start_state_is_that_after_the_inspection_of_the_target(
    write_trace: WriteTrace, tmp_path: Path
) -> None:
    output = tmp_path / "run.parquet"
    with odd_server() as server:

        async def start() -> str:
            return "0 of 1 models warm"

        asyncio.run(play(write_trace(["m"], count=1, gap_s=1.0), server.url, output, start))
    assert read_run(output, "run").metadata["start_state"] == "0 of 1 models warm"


def test_a_start_that_fails_ends_the_run_with_its_error(
    write_trace: WriteTrace, tmp_path: Path
) -> None:
    async def start() -> str:
        raise LookupError("pod-0 does not unload m")

    trace = write_trace(["m"], count=1, gap_s=1.0)
    with odd_server() as server, pytest.raises(LookupError, match="pod-0 does not unload m"):
        asyncio.run(play(trace, server.url, tmp_path / "run.parquet", start))
