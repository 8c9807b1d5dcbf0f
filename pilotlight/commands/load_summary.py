"""Progress of a load run on standard error, on a terminal as a bar; then its summary."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from load.generator.settings import RunProgress
from pilotlight.output import Output, progress_bar

_MAX_ROWS = 20


def print_summary(output: Output, path: Path, summary: dict[str, Any]) -> None:
    if output.as_json:
        output.result({"output": str(path), **summary})
        return
    latency = summary["latency_s"]
    lateness = summary["send_lateness_s"]
    statuses = ", ".join(f"{_status(key)}: {n}" for key, n in summary["by_status"].items())
    starts = ", ".join(f"{key}: {n}" for key, n in summary["by_start"].items()) or "not reported"
    for line in (
        f"records       {path}",
        f"requests      {summary['requests']} in {summary['duration_s']:.1f} s",
        f"status        {statuses}",
        f"start         {starts}",
        f"offered       {_rate(summary['offered_rps'])}",
        f"goodput       {summary['goodput_rps']:.1f} requests/s completed in time",
        f"deadlines     {summary['deadline_misses']} of {summary['with_deadline']} missed",
        f"latency       {_percentiles(latency)}",
        *_first_token(summary),
        f"idle memory   {_gigabyte_seconds(summary['wasted_memory_byte_s'])}",
        f"sent late     {summary['late_sends']} by more than "
        f"{1000 * summary['late_after_s']:.0f} ms, {_percentiles(lateness)}; "
        f"{summary['not_sent']} not sent",
    ):
        output.line(line)
    _print_failures(output, summary.get("failures", ()))
    _print_answers(output, summary.get("answers"))
    for key, title in (("by_policy", "POLICY"), ("by_model", "MODEL")):
        columns = (title, "REQUESTS", "OK", "COLD", "MISSED", "P50 S", "P90 S", "P95 S", "P99 S")
        _print_first(output, columns, [_row(*each) for each in summary[key].items()])


def _print_failures(output: Output, failures: Sequence[dict[str, Any]]) -> None:
    """Why requests failed: by model and status the first error."""
    rows = [
        (
            each["model"],
            _status(str(each["status"])),
            str(each["requests"]),
            each["first_error"].removeprefix(f"HTTP {each['status']}: "),
        )
        for each in failures
    ]
    _print_first(output, ("MODEL", "STATUS", "FAILED", "FIRST ERROR"), rows)


def _print_first(output: Output, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        return
    output.line()
    output.table(columns, rows[:_MAX_ROWS])
    if len(rows) > _MAX_ROWS:
        output.line(f"and {len(rows) - _MAX_ROWS} more")


def _print_answers(output: Output, answers: dict[str, Any] | None) -> None:
    """Of a run with labelled examples."""
    if answers is None:
        return
    rows = [("all", answers), *answers["by_application"].items()]
    output.line()
    output.table(
        ("APPLICATION", "REQUESTS", "UTILITY", "EXPECTED", "RIGHT", "MISSED", "VARIANTS"),
        [
            (
                name,
                str(each["requests"]),
                f"{each['utility']:.3f}",
                _share(each["expected_utility"]),
                _share(each["accuracy"]),
                str(each["missed"]),
                ", ".join(f"{variant}: {n}" for variant, n in each["variants"].items()),
            )
            for name, each in rows
        ],
    )


def _first_token(summary: dict[str, Any]) -> list[str]:
    """Of a run over OpenAI's protocol, which streams."""
    if "first_token_s" not in summary:
        return []
    lines = [f"first token   {_percentiles(summary['first_token_s'])}"]
    if "tokens_per_s" in summary:
        lines += [
            f"tokens        {summary['tokens_per_s']:.1f} tokens/s",
            f"per token     {_percentiles(summary['time_per_token_s'])}, after the first",
        ]
    return lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _rate(rps: float | None) -> str:
    return "at one moment" if rps is None else f"{rps:.1f} requests/s"


def _row(name: str, each: dict[str, Any]) -> tuple[str, ...]:
    counts = (each["requests"], each["ok"], each["cold_starts"], each["deadline_misses"])
    latency = each["latency_s"]
    return (name, *map(str, counts), *(_seconds(latency[f"p{p}"]) for p in (50, 90, 95, 99)))


def _status(key: str) -> str:
    return "no response" if key == "0" else key


def _percentiles(values: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {_seconds(value)} s" for name, value in values.items())


def _gigabyte_seconds(byte_s: float | None) -> str:
    return "not reported" if byte_s is None else f"{byte_s / 1e9:.4g} GB s held by idle models"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


_LINE_INTERVAL_S = 10.0
"""Time between two lines when standard error is no terminal."""


@contextmanager
def load_progress(
    *, now_s: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[RunProgress], None]]:
    """Yields the function to report progress to; `now_s` is the clock of the plain lines."""
    printed_s = now_s()
    with progress_bar("load") as update:

        def on_progress(progress: RunProgress) -> None:
            nonlocal printed_s
            if sys.stderr.isatty() or now_s() - printed_s >= _LINE_INTERVAL_S:
                printed_s = now_s()
                update(progress.done, progress.requests, describe_progress(progress))

        yield on_progress


def describe_progress(progress: RunProgress) -> str:
    """Such as `9/30 requests  p50 12.0 ms  p99 80.2 ms  3 in flight  0 failed  0 late`."""
    times = "  ".join(
        f"p{percent} {_milliseconds(progress.latencies.percentile_s(percent / 100))}"
        for percent in (50, 95, 99)
    )
    return (
        f"{progress.done}/{progress.requests} requests  {times}  {progress.in_flight} in flight  "
        f"{progress.failed} failed  {progress.late} late"
    )


def _milliseconds(seconds: float) -> str:
    if seconds != seconds:
        return "-"
    return f"{1000 * seconds:.4g} ms" if seconds < 1 else f"{1000 * seconds:.0f} ms"
