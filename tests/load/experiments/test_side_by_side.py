"""Tasks side by side: results keep their order and are kept as they come, and no worker outlives
its parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from load.experiments.experiment import Settings
from load.experiments.parallel_map import run_side_by_side
from tests.servers import is_alive, wait_until

PATIENCE_S = 180.0
_PARENT = """
import sys
from load.experiments.experiment import Settings
from load.experiments.parallel_map import run_side_by_side
from tests.load.experiments.test_side_by_side import say_and_stay

if __name__ == "__main__":
    run_side_by_side(say_and_stay, sys.argv[1:], Settings(processes=2), what="tasks")
"""


def double(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is negative")
    return 2 * number


def say_and_stay(path: str) -> None:
    """Leave the number of this process in a file, and go on for longer than any test."""
    aside = Path(path + ".tmp")
    aside.write_text(str(os.getpid()))
    aside.rename(path)
    time.sleep(3600)


@pytest.mark.parametrize("processes", [1, 2])
def test_results_keep_the_order_and_failures_are_raised(processes: int) -> None:
    settings = Settings(processes=processes)
    assert run_side_by_side(double, [3, 1, 2], settings, what="tasks") == [6, 2, 4]
    with pytest.raises(ValueError, match="-1 is negative"):
        run_side_by_side(double, [1, -1], settings, what="tasks")


def name_or_fail(path: Path) -> str:
    """Its name; of a file in a folder `kept` a failure, once the file is there."""
    if path.parent.name == "kept":
        wait_until(path.exists, timeout_s=PATIENCE_S, what="the other result was kept")
        raise ValueError(f"{path.name} fails")
    return path.name


@pytest.mark.parametrize("processes", [1, 2])
def test_what_came_before_a_failure_is_kept(tmp_path: Path, processes: int) -> None:
    good, bad = tmp_path / "good", tmp_path / "kept" / "good"
    bad.parent.mkdir()

    def keep(what: str, task: object, found: object) -> None:
        assert (what, task) == ("tasks", good)
        (tmp_path / "kept" / str(found)).touch()

    with pytest.raises(ValueError, match="good fails"):
        run_side_by_side(
            name_or_fail, [good, bad], Settings(processes=processes, keep=keep), what="tasks"
        )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_when_their_parent_does(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "parent.py"
    script.write_text(_PARENT)
    files = [tmp_path / name for name in ("one", "two")]
    code = str(Path(__file__).parents[3])
    parent = subprocess.Popen(
        [sys.executable, script, *files],
        env={**os.environ, "PYTHONPATH": code},
        stderr=subprocess.DEVNULL,  # what it left behind is told there
    )
    try:
        wait_until(
            lambda: all(file.exists() for file in files),
            timeout_s=PATIENCE_S,
            what="both workers at work",
        )
        workers = [int(file.read_text()) for file in files]
    finally:
        parent.send_signal(number)
        parent.wait(PATIENCE_S)
    wait_until(
        lambda: not any(map(is_alive, workers)), timeout_s=PATIENCE_S, what="no worker is left"
    )
