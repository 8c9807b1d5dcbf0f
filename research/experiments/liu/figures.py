"""Liu 2025, figures 6.1 to 6.3 and 3.2, drawn from the runs of ten sequential requests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from registry.domain.pod import STAGES
from research.demo import SIMPLE_REQUESTS, SimpleRun, mean_s, mean_stages_s
from research.experiments.liu.sizes import AFTER, BEFORE, LARGEST, LARGEST_LOAD, SIZES
from research.report.style import (
    COLOURS,
    DPI,
    HATCHES,
    LINES,
    MARKERS,
    legend_below,
    log_ticks,
    styled,
)

Runs: TypeAlias = "Mapping[tuple[str, str], list[SimpleRun]]"
"""By model and policy."""
Series: TypeAlias = "Sequence[tuple[str, str, Runs]]"
"""Per colour of the plots: label, policy and runs."""
_FIRST: Final = SIZES[0].model
_INCHES: Final = (9.0, 13.5)


def draw_figures(runs: Mapping[str, Runs], thesis: Mapping[int, float], folder: Path) -> Path:
    """Write `figures.png`; `runs` are by kind: simulated, live."""
    path = folder / "figures.png"
    series = [
        (f"{policy} ({kind})", policy, by_model)
        for kind, by_model in runs.items()
        for policy in (BEFORE, AFTER)
        if any((size.model, policy) in by_model for size in SIZES)
    ]
    with styled():
        figure = Figure(figsize=_INCHES)
        totals, requests, stages, cold_starts = figure.subplots(4, 1)
        _draw_totals(totals, series, thesis)
        _draw_requests(requests, series)
        _draw_stages(stages, series)
        _draw_cold_starts(cold_starts, runs.get("live", {}), thesis)
        legend_below(totals)
        figure.savefig(path, dpi=DPI)
    return path


def _bars(axes: Axes, index: int, of: int, heights: Sequence[float], **options: Any) -> Any:
    """Draw series number `index` of `of`, beside the others; returns the bars' x positions."""
    width = 0.8 / of
    x = np.arange(len(heights)) - 0.4 + width * (index + 0.5)
    axes.bar(
        x,
        heights,
        width,
        color=COLOURS[index],
        hatch=HATCHES[index],
        edgecolor="white",
        linewidth=0,
        **options,
    )
    return x


def _draw_totals(axes: Axes, series: Series, thesis: Mapping[int, float]) -> None:
    label = "the thesis"
    for index, (name, policy, by_model) in enumerate(series):
        found = [by_model.get((size.model, policy), []) for size in SIZES]
        means = [mean_s([run.total_s for run in each]) if each else np.nan for each in found]
        places = _bars(axes, index, len(series), means, label=name)
        known = [
            thesis.get(size.total_before if policy == BEFORE else size.total_after)
            for size in SIZES
        ]
        for x, value in zip(places, known if index < 2 else (), strict=False):
            if value is not None:
                axes.plot(x, value, "D", color="black", label=label, linestyle="none")
                label = "_"  # the legend lists the thesis once
    axes.set_title("Figure 6.1: ten requests, one after the other")
    axes.set_ylabel("End to end (s)")
    axes.set_xticks(np.arange(len(SIZES)), [size.model for size in SIZES])
    axes.grid(visible=False, axis="x")


def _draw_requests(axes: Axes, series: Series) -> None:
    for index, (_, policy, by_model) in enumerate(series):
        if found := by_model.get((_FIRST, policy)):
            latencies_s = [response.latency_s for response in found[0].answers]
            axes.plot(range(1, len(latencies_s) + 1), latencies_s, "o-", color=COLOURS[index])
    axes.set_title(f"Figure 6.2: each request to {_FIRST}, the first seed")
    axes.set_xlabel("Request")
    axes.set_ylabel("Latency (s)")
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(1, SIMPLE_REQUESTS + 1))


def _draw_stages(axes: Axes, series: Series) -> None:
    for index, (_, policy, by_model) in enumerate(series):
        responses = [each for run in by_model.get((_FIRST, policy), []) for each in run.answers]
        if responses:
            means = mean_stages_s(responses)
            shown = [means[stage] if means[stage] > 0 else np.nan for stage in STAGES]
            _bars(axes, index, len(series), shown)
    axes.set_title(f"Figure 6.3: time of a request to {_FIRST} by stage")
    axes.set_ylabel("Mean (s), logarithmic")
    axes.set_xticks(np.arange(len(STAGES)), STAGES)
    axes.set_xlim(-0.6, len(STAGES) - 0.4)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.7 * axes.get_ylim()[0])
    log_ticks(axes.yaxis)
    axes.grid(visible=False, axis="x")


def _draw_cold_starts(axes: Axes, live: Runs, thesis: Mapping[int, float]) -> None:
    """Cold start and inference over the size of the weights; T5-3B in the thesis only."""
    found = [(size, cold_and_warm_s(live.get((size.model, BEFORE), []))) for size in SIZES]
    series = {
        "cold start (the thesis)": [(size.weights_mb, size.times.load_s) for size in SIZES],
        "load (live)": [(size.weights_mb, each[0]) for size, each in found if each],
        "inference (live)": [(size.weights_mb, each[1]) for size, each in found if each],
    }
    if LARGEST_LOAD in thesis:
        series["cold start (the thesis)"].append((LARGEST[1], thesis[LARGEST_LOAD]))
    for index, (label, points) in enumerate(series.items()):
        if points:
            axes.plot(
                *zip(*points, strict=True),
                MARKERS[index],
                color=COLOURS[index],
                linestyle=LINES[index],
                label=label,
            )
    axes.set_title("Figure 3.2: cold start and inference of T5-small, base, large and 3B")
    axes.set_xlabel("Weights (MB)")
    axes.set_ylabel("Seconds, logarithmic")
    for axis, set_scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
        set_scale("log")
        log_ticks(axis)
    axes.legend(loc="upper left")


def cold_and_warm_s(runs: Sequence[SimpleRun]) -> tuple[float, float] | None:
    """Mean load of the cold requests, and mean inference; None without runs."""
    responses = [response for run in runs for response in run.answers]
    loads_s = [each.stages_s.get("load", 0.0) for each in responses if each.is_cold]
    if not loads_s:
        return None
    return mean_s(loads_s), mean_s([each.stages_s.get("infer", 0.0) for each in responses])
