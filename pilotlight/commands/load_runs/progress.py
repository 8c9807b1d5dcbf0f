"""Progress of a load run on standard error: on a terminal a bar with live percentiles."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from load.generator.progress import RunProgress

_LINE_INTERVAL_S = 10.0
"""Time between two lines when standard error is no terminal."""


@contextmanager
def load_progress(
    trace_s: float, requests: int, *, now_s: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[RunProgress], None]]:
    """Yields the function to report progress to; `now_s` is the clock of the plain lines."""
    if not sys.stderr.isatty():
        yield _print_lines(now_s)
        return
    with Progress(
        TextColumn("{task.completed:.0f}/{task.total:.0f} requests"), BarColumn(),
        TimeElapsedColumn(), TextColumn(f"of {trace_s:.0f} s"), TextColumn("{task.fields[text]}"),
        console=Console(stderr=True), transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task("load", total=requests, text="")
        yield lambda progress: bar.update(
            task, completed=progress.done, text=describe_progress(progress)
        )


def _print_lines(now_s: Callable[[], float]) -> Callable[[RunProgress], None]:
    printed_s = now_s()

    def on_progress(progress: RunProgress) -> None:
        nonlocal printed_s
        if now_s() - printed_s >= _LINE_INTERVAL_S:
            printed_s = now_s()
            line = f"{progress.done}/{progress.requests} requests, {describe_progress(progress)}"
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    return on_progress


def describe_progress(progress: RunProgress) -> str:
    """Such as `p50 12.0 ms  p99 80.2 ms  3 in flight  0 failed  0 late`."""
    times = "  ".join(
        f"p{percent} {_milliseconds(progress.latencies.percentile_s(percent / 100))}"
        for percent in (50, 95, 99)
    )
    return (
        f"{times}  {progress.in_flight} in flight  {progress.failed} failed  {progress.late} late"
    )


def _milliseconds(seconds: float) -> str:
    if seconds != seconds:
        return "-"
    return f"{1000 * seconds:.4g} ms" if seconds < 1 else f"{1000 * seconds:.0f} ms"
