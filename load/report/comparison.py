"""A report from runs: all plots drawn, the page written, the summaries as JSON."""

import io
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from load.errors import BadOutput, ReportError
from load.report.page import page
from load.report.plots.bars import cold_starts, stages, tenants, utility
from load.report.plots.machines import loading_time, machine_usage
from load.report.plots.requests import arrivals, completion_times, deadline_misses, workload
from load.report.plots.tradeoffs import goodput, wasted_memory
from load.report.run import Run
from load.report.style import DPI, LeftOut, Plot, styled
from load.report.summary import summarise

PLOTS: Final = (
    arrivals,
    workload,
    completion_times,
    deadline_misses,
    loading_time,
    cold_starts,
    stages,
    goodput,
    wasted_memory,
    tenants,
)


@dataclass(frozen=True, slots=True)
class WrittenReport:
    page: Path
    images: tuple[Path, ...]
    left_out: tuple[LeftOut, ...]
    summaries: tuple[dict[str, Any], ...]


def write_report(
    runs: Sequence[Run], folder: Path, on_progress: Callable[[int, int, str], None]
) -> WrittenReport:
    """Write `index.html`, `report.json` and a PNG per plot into a folder.

    Raises:
        BadOutput: the folder cannot be created; nothing was written.
        ReportError: a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOutput(
            f"--output must be a folder, or a name for a new one, was {folder}: {error.strerror}"
        ) from error
    try:
        return _write(runs, folder, on_progress)
    except OSError as error:
        raise ReportError(f"--output: cannot write to {folder}: {error}") from error


def _write(
    runs: Sequence[Run], folder: Path, on_progress: Callable[[int, int, str], None]
) -> WrittenReport:
    total = len(PLOTS) + len(runs) + 1
    on_progress(0, total, "measures")
    summaries = [summarise(run) for run in runs]
    drawn: list[tuple[Plot, bytes]] = []
    left_out: list[LeftOut] = []
    with styled():
        for done, each in enumerate(_plots(runs), start=1):
            if isinstance(each, LeftOut):
                left_out.append(each)
            else:
                drawn.append((each, _png(each)))
            on_progress(done, total, each.heading)
    images = []
    for plot, image in drawn:
        images.append(folder / f"{plot.name}.png")
        images[-1].write_bytes(image)
    index = folder / "index.html"
    text = page(summaries, [run.metadata for run in runs], drawn, left_out)
    index.write_text(text, encoding="utf-8", errors="replace")
    (folder / "report.json").write_text(json.dumps(summaries, indent=2))
    return WrittenReport(index, tuple(images), tuple(left_out), tuple(summaries))


def _plots(runs: Sequence[Run]) -> Iterator[Plot | LeftOut]:
    for plot in PLOTS:
        yield plot(runs)
    if any(run.answers is not None for run in runs):
        yield utility(runs)
    for number, run in enumerate(runs, start=1):
        yield machine_usage(run, number)


def _png(plot: Plot) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names in any script
        plot.figure.savefig(file, format="png", dpi=DPI)
    return file.getvalue()
