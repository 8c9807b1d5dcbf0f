"""Display of a run's progress: a bar with percentiles on a terminal, lines elsewhere."""

import os
import pty
import re
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from load.generator.settings import LatencyHistogram, RunProgress
from pilotlight.commands.load_summary import describe_progress, load_progress
from tests.load.generator.conftest import LoadRun, WriteTrace
from tests.load.generator.odd_server import odd_server

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@contextmanager
def _terminal_as_standard_error(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A real terminal of 200 columns; afterwards the list holds what it showed."""
    master, slave = pty.openpty()
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    shown: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_read_all, master)
        try:
            with os.fdopen(slave, "w") as terminal, monkeypatch.context() as patch:
                patch.setattr(sys, "stderr", terminal)
                yield shown
        finally:
            shown.append(_ESCAPES.sub("", reading.result().decode()))
            os.close(master)


def _read_all(master: int) -> bytes:
    content = b""
    try:
        while piece := os.read(master, 65_536):
            content += piece
    except OSError:  # Linux raises it when the last writer has closed the terminal
        pass
    return content


@pytest.mark.slow
def test_a_terminal_shows_a_bar_with_live_percentiles(
    load_run: LoadRun, write_trace: WriteTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = write_trace(["plain", "plain", "busy"], count=30, gap_s=0.03)
    with odd_server() as server, _terminal_as_standard_error(monkeypatch) as shown:
        ran = load_run(trace, server.url, "--processes", "2")
    assert ran.status == 0, shown
    [text] = shown
    last = re.findall(
        r"(\d+)/30 requests  p50 ([\d.]+) ms  p95 ([\d.]+) ms  p99 ([\d.]+) ms  "
        r"(\d+) in flight  (\d+) failed  \d+ late",
        text,
    )[-1]
    assert (last[0], *last[4:]) == ("30", "0", "10")
    assert 0 < float(last[1]) <= float(last[2]) <= float(last[3])
    assert ran.out.startswith("records ")


def test_without_a_terminal_a_line_is_printed_every_ten_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock_s = [0.0]
    with load_progress(now_s=lambda: clock_s[0]) as on_progress:
        for clock_s[0] in (0.25, 9.75, 10.0, 10.25, 19.75, 20.0, 25.0):
            on_progress(RunProgress(requests=600, done=int(clock_s[0] * 10), in_flight=3))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("  ")[0] for line in lines] == [
        "load: 100/600 requests",
        "load: 200/600 requests",
    ]
    assert lines[0].endswith("p50 -  p95 -  p99 -  3 in flight  0 failed  0 late")


def test_percentiles_cover_responses_and_failures_are_counted() -> None:
    latencies = LatencyHistogram()
    for latency_s in [0.01] * 90 + [20.0] * 10:
        latencies.observe(latency_s)
    progress = RunProgress(
        requests=200,
        done=105,
        late=2,
        by_status=Counter({200: 100, 503: 4, 0: 1}),
        latencies=latencies,
    )
    found = re.fullmatch(
        r"105/200 requests  p50 ([\d.]+) ms  p95 (\d+) ms  p99 \2 ms  0 in flight  "
        r"5 failed  2 late",
        describe_progress(progress),
    )
    assert found is not None
    assert 10 <= float(found[1]) <= 10.6
    assert 20_000 <= int(found[2]) <= 21_100
