"""Parallel tasks: results in order, logged at once, and no worker outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from research.experiments.harness.experiment import Settings
from research.experiments.harness.parallel_map import parallel_map
from tests.servers import is_alive, wait_until

TIMEOUT_S = 180.0
_PARENT = """
import sys
from research.experiments.harness.experiment import Settings
from research.experiments.harness.parallel_map import parallel_map
from tests.research.experiments.harness.test_parallel_map import write_pid_and_sleep

if __name__ == "__main__":
    parallel_map(write_pid_and_sleep, sys.argv[1:], Settings(processes=2), what="tasks")
"""


def double(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is negative")
    return 2 * number


def write_pid_and_sleep(path: str) -> None:
    """Write the number of this process to a file, then run for longer than any test."""
    temporary = Path(path + ".tmp")
    temporary.write_text(str(os.getpid()))
    temporary.rename(path)
    time.sleep(3600)


@pytest.mark.parametrize("processes", [1, 2])
def test_results_are_in_order_and_failures_are_raised(processes: int) -> None:
    settings = Settings(processes=processes)
    assert parallel_map(double, [3, 1, 2], settings, what="tasks") == [6, 2, 4]
    with pytest.raises(ValueError, match="-1 is negative"):
        parallel_map(double, [1, -1], settings, what="tasks")


def name_or_fail(path: Path) -> str:
    """The file's name; for one in the folder `kept` an error, once the file exists."""
    if path.parent.name == "kept":
        wait_until(path.exists, timeout_s=TIMEOUT_S, what="the other result was kept")
        raise ValueError(f"{path.name} fails")
    return path.name


@pytest.mark.parametrize("processes", [1, 2])
def test_results_before_a_failure_are_kept(tmp_path: Path, processes: int) -> None:
    good, bad = tmp_path / "good", tmp_path / "kept" / "good"
    bad.parent.mkdir()

    def keep(what: str, task: object, found: object) -> None:
        assert (what, task) == ("tasks", good)
        (tmp_path / "kept" / str(found)).touch()

    with pytest.raises(ValueError, match="good fails"):
        parallel_map(
            name_or_fail, [good, bad], Settings(processes=processes, keep=keep), what="tasks"
        )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_when_their_parent_does(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "parent.py"
    script.write_text(_PARENT)
    files = [tmp_path / name for name in ("one", "two")]
    code = str(Path(__file__).parents[4])
    parent = subprocess.Popen(
        [sys.executable, script, *files],
        env={**os.environ, "PYTHONPATH": code},
        stderr=subprocess.DEVNULL,  # shows warnings about workers
    )
    try:
        wait_until(
            lambda: all(file.exists() for file in files),
            timeout_s=TIMEOUT_S,
            what="both workers at work",
        )
        workers = [int(file.read_text()) for file in files]
    finally:
        parent.send_signal(number)
        parent.wait(TIMEOUT_S)
    wait_until(
        lambda: not any(map(is_alive, workers)), timeout_s=TIMEOUT_S, what="no worker is running"
    )
