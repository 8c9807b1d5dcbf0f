"""The progress of a load run on standard error: a bar with live percentiles on a terminal."""

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

_PLAIN_EVERY_S = 10.0
"""Between lines where there is no terminal."""


@contextmanager
def load_progress(
    trace_s: float, requests: int, *, now_s: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[RunProgress], None]]:
    """Call it with the progress whenever there is some; `now_s` times lines off a terminal."""
    if not sys.stderr.isatty():
        yield _plain_lines(now_s)
        return
    with Progress(
        TextColumn("{task.completed:.0f}/{task.total:.0f} requests"), BarColumn(),
        TimeElapsedColumn(), TextColumn(f"of {trace_s:.0f} s"), TextColumn("{task.fields[text]}"),
        console=Console(stderr=True), transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task("load", total=requests, text="")
        yield lambda progress: bar.update(task, completed=progress.done, text=described(progress))


def _plain_lines(now_s: Callable[[], float]) -> Callable[[RunProgress], None]:
    said_s = now_s()

    def tell(progress: RunProgress) -> None:
        nonlocal said_s
        if now_s() - said_s >= _PLAIN_EVERY_S:
            said_s = now_s()
            line = f"{progress.done}/{progress.requests} requests, {described(progress)}"
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    return tell


def described(progress: RunProgress) -> str:
    """Such as `p50 12.0 ms  p99 80.2 ms  3 in flight  0 failed  0 late`."""
    times = "  ".join(
        f"p{percent} {_milliseconds(progress.latency_s(percent / 100))}" for percent in (50, 95, 99)
    )
    return (
        f"{times}  {progress.in_flight} in flight  {progress.failed} failed  {progress.late} late"
    )


def _milliseconds(seconds: float) -> str:
    if seconds != seconds:
        return "-"
    return f"{1000 * seconds:.4g} ms" if seconds < 1 else f"{1000 * seconds:.0f} ms"
