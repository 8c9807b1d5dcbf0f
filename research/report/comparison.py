"""A report from runs: all plots drawn, the page written, the summaries as JSON."""

import base64
import io
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

from load.report.run import Run
from load.report.summary import PERCENTILES, summarise
from pilotlight.errors import InvalidInput, RequestFailed
from research.report.paper_plots import goodput, utility, wasted_memory
from research.report.plots import arrivals, cold_starts, completion_times, deadline_misses, stages
from research.report.style import COLOURS, DPI, LeftOut, Plot, styled
from research.report.time_bins import format_duration

_MAX_MODELS: Final = 25
_STYLE: Final = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #1b1b1b; background: #fff;
  max-width: 1120px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .4rem; }
figure { margin: 0; }
img { width: 100%; min-width: 44rem; height: auto; }
figcaption, .note { color: #4a4a4a; font-size: .9rem; max-width: 46rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; margin: .6rem 0; }
th, td { padding: .28rem .5rem; text-align: right; border-bottom: 1px solid #ddd;
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal;
  overflow-wrap: anywhere; min-width: min(12rem, 40vw); }
th { border-bottom: 2px solid #888; white-space: normal; vertical-align: bottom; }
.mark { display: inline-block; width: .8em; height: .8em; margin-right: .45em; }
.warn { background: #fff4d6; border-left: 4px solid #E69F00; padding: .4rem .8rem; }
nav { font-size: .9rem; }
.narrow { display: none; }
@media (max-width: 46rem) { .narrow { display: block; } }
"""

_OVERVIEW: Final = (
    "At its start: models that were on a device already, which favours a run. Offered: requests "
    "per second of the trace. Goodput: responses per second within the deadline, "
    "or all complete responses if there is none. Cold starts: requests that waited for a load of "
    "their model. Loading: time of all loads, over all pods; a lower bound (≥) if the run records "
    "only loads that requests waited for. Idle: bytes of models on devices that no request used, "
    "times seconds. Missed: requests past their deadlines. Jain's index: fairness between tenants, "
    "1 if all are served alike. -: undefined, such as the rate of one request, or fairness with "
    "one tenant."
)
_PERCENTILES: Final = (
    "Of the answered requests, from their time in the trace to the last byte: half of them took no "
    "longer than p50, 99 % no longer than p99."
)


def page(
    summaries: Sequence[Mapping[str, Any]],
    metadata: Sequence[Mapping[str, Any]],
    drawn: Sequence[tuple[Plot, bytes]],
    left_out: Sequence[LeftOut],
) -> str:
    """The HTML of the page; `drawn` has each plot with its PNG."""
    title = "Comparison of runs" if len(summaries) > 1 else f"Run {summaries[0]['run']}"
    links = " · ".join(f'<a href="#{plot.name}">{escape(plot.heading)}</a>' for plot, _ in drawn)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            '<p class="note narrow">Tables and plots scroll sideways.</p>',
            *_warnings(summaries),
            _overview(summaries, metadata),
            *_failures(summaries),
            f'<p class="note">{_OVERVIEW}</p>',
            f"<nav>{links}</nav>",
            "<h2>Percentiles of completion times</h2>",
            _percentile_table("Run", [(each["run"], each) for each in summaries]),
            f'<p class="note">{_PERCENTILES}</p>',
            *(_section(plot, image) for plot, image in drawn),
            *_model_tables(summaries),
            *_left_out(left_out),
            "</body></html>\n",
        ]
    )


def _warnings(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    found = []
    for each in summaries:
        name = escape(each["run"])
        if each["interrupted"]:
            found.append(f"{name} was interrupted: it has the requests up to then.")
        late, total = each["late_sends"], each["requests"]
        if late:
            found.append(
                f"{name}: {late:,} of {total:,} requests ({late / total:.1%}) were sent more than "
                f"{1000 * each['late_after_s']:.0f} ms late; their latency counts from the "
                "scheduled time."
            )
        if each["not_sent"]:
            found.append(
                f"{name}: {each['not_sent']:,} requests were not sent, because too many were in "
                "flight; they count as failed."
            )
    return [f'<p class="warn">{text}</p>' for text in found]


def _failures(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Requests of each run without a complete 2xx response, by cause."""
    found = []
    for each in summaries:
        failed = each["requests"] - each["ok"]
        codes = {code: n for code, n in each["by_status"].items() if not 200 <= int(code) < 300}
        broken = failed - sum(codes.values())
        causes = [
            *(
                f"{n:,} no response" if code == "0" else f"{n:,} HTTP {code}"
                for code, n in codes.items()
            ),
            *([f"{broken:,} incomplete"] if broken else []),
        ]
        if failed:
            found.append(f"<li>{escape(each['run'])}: {', '.join(causes)}</li>")
    return [f'<p class="note">Not answered:</p><ul class="note">{"".join(found)}</ul>'] * bool(
        found
    )


def _overview(summaries: Sequence[Mapping[str, Any]], metadata: Sequence[Mapping[str, Any]]) -> str:
    columns = (
        "Run",
        "At its start",
        "Requests",
        "Answered",
        "Duration",
        "Offered /s",
        "Goodput /s",
        "Cold starts",
        "Loading",
        "Idle GB s",
        "Missed",
        "Jain's index",
    )
    rows = []
    for index, (each, known) in enumerate(zip(summaries, metadata, strict=True)):
        mark = f'<span class="mark" style="background:{COLOURS[index]}"></span>'
        missed = (
            f"{each['deadline_misses']:,} of {each['with_deadline']:,}"
            if each["with_deadline"]
            else "none set"
        )
        idle = each["wasted_memory_byte_s"]
        cells = [
            escape(str(known.get("start_state") or "not recorded")),
            f"{each['requests']:,}",
            f"{each['ok'] / each['requests']:.2%}",
            format_duration(each["duration_s"]),
            "-" if each["offered_rps"] is None else f"{each['offered_rps']:.4g}",
            f"{each['goodput_rps']:.4g}",
            f"{each['cold_starts']:,}" if each["by_start"] else "not recorded",
            _loading(each),
            "not recorded" if idle is None else f"{idle / 1e9:,.4g}",
            missed,
            "-" if each["fairness"] is None else f"{each['fairness']:.3f}",
        ]
        kind = f" ({escape(str(known['kind']))})" if "kind" in known else ""
        rows.append([mark + escape(each["run"]) + kind, *cells])
    return _table(columns, rows)


def _loading(summary: Mapping[str, Any]) -> str:
    if summary["all_loading_s"] is not None:
        return format_duration(summary["all_loading_s"])
    return f"≥ {format_duration(summary['loading_s'])}" if summary["by_start"] else "not recorded"


def _percentile_table(first: str, named: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    columns = (first, "Requests", "Answered", *(f"p{each}" for each in PERCENTILES), "Largest")
    keys = [*(f"p{each}" for each in PERCENTILES), "max"]
    rows = [
        [
            escape(name),
            f"{each['requests']:,}",
            f"{each['ok']:,}",
            *(_format_seconds(each["latency_s"][key]) for key in keys),
        ]
        for name, each in named
    ]
    return _table(columns, rows)


def _model_tables(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    parts = ["<h2>Percentiles by policy and model</h2>"]
    for each in summaries:
        models = list(each["by_model"].items())
        policies = [(f"policy {name}", found) for name, found in each["by_policy"].items()]
        more = len(models) - _MAX_MODELS
        parts += [
            f"<details{' open' if len(summaries) == 1 else ''}><summary>{escape(each['run'])}"
            "</summary>",
            _percentile_table("Policy or model", [*policies, *models[:_MAX_MODELS]]),
            f'<p class="note">and {more:,} more models</p>' if more > 0 else "",
            "</details>",
        ]
    return parts


def _section(plot: Plot, image: bytes) -> str:
    data = base64.b64encode(image).decode()
    heading, caption = escape(plot.heading), escape(plot.caption)
    return (
        f'<h2 id="{plot.name}">{heading}</h2><figure><div class="wide">'
        f'<img alt="{heading}. {caption}" src="data:image/png;base64,{data}"></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _left_out(left_out: Sequence[LeftOut]) -> list[str]:
    if not left_out:
        return []
    items = "".join(f"<li>{escape(each.heading)}: {escape(each.why)}.</li>" for each in left_out)
    return ["<h2>Left out</h2>", f'<ul class="note">{items}</ul>']


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML, headings are text."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _format_seconds(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


PLOTS: Final = (
    arrivals,
    completion_times,
    deadline_misses,
    cold_starts,
    stages,
    goodput,
    utility,
    wasted_memory,
)
"""Functions of runs; None: nothing of these runs."""


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
        InvalidInput: the folder cannot be created; nothing was written.
        RequestFailed: a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            [f"--output must be a folder, or a name for a new one, was {folder}: {error.strerror}"]
        ) from error
    try:
        return _write(runs, folder, on_progress)
    except OSError as error:
        raise RequestFailed(f"--output: cannot write to {folder}: {error}") from error


def _write(
    runs: Sequence[Run], folder: Path, on_progress: Callable[[int, int, str], None]
) -> WrittenReport:
    total = len(PLOTS) + 1
    on_progress(0, total, "measures")
    summaries = [summarise(run) for run in runs]
    drawn: list[tuple[Plot, bytes]] = []
    left_out: list[LeftOut] = []
    with styled():
        for done, draw in enumerate(PLOTS, start=1):
            each = draw(runs)
            if isinstance(each, LeftOut):
                left_out.append(each)
            elif each is not None:
                drawn.append((each, _png(each)))
            on_progress(done, total, draw.__name__.replace("_", " "))
    images = []
    for plot, image in drawn:
        images.append(folder / f"{plot.name}.png")
        images[-1].write_bytes(image)
    index = folder / "index.html"
    text = page(summaries, [run.metadata for run in runs], drawn, left_out)
    index.write_text(text, encoding="utf-8", errors="replace")
    (folder / "report.json").write_text(json.dumps(summaries, indent=2))
    return WrittenReport(index, tuple(images), tuple(left_out), tuple(summaries))


def _png(plot: Plot) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names in any script
        plot.figure.savefig(file, format="png", dpi=DPI)
    return file.getvalue()
