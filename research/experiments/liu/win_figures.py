"""Liu 2025, figures 6.4 to 6.6: mean time per stage and policy in the workloads of section 6.4."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from registry.domain.pod import STAGES
from research.demo import (
    POLICIES,
    THESIS_SLEEP_S,
    WIN_SCENARIOS,
    WinRun,
    WinScenario,
    mean_s,
    mean_stages_s,
)
from research.experiments.harness.experiment import Cell, Table
from research.report.style import COLOURS, DPI, HATCHES, legend_below, log_ticks, styled

FIGURES: Final = {"6.4.1": "6.4", "6.4.2": "6.5", "6.4.3": "6.6"}
"""Number of each workload's figure."""
_INCHES: Final = (9.0, 11.0)
_LEAST_S: Final = 0.001
"""Shorter stages, such as an empty postprocessing, are not drawn."""
_HEADROOM: Final = 1.6


def stages_table(runs: Mapping[str, Sequence[WinRun]]) -> Table:
    """Mean seconds per request and stage; `runs` are by kind: simulated, live."""
    rows: list[tuple[Cell, ...]] = []
    for scenario in WIN_SCENARIOS:
        for kind, found in runs.items():
            for policy in POLICIES:
                if run := _run_of(found, scenario, policy):
                    stages_s = mean_stages_s(run.responses)
                    rows.append(
                        (
                            FIGURES[scenario.section],
                            kind,
                            policy,
                            *(stages_s[stage] for stage in STAGES),
                            mean_s([each.latency_s for each in run.responses]),
                        )
                    )
    return Table(
        "Figures 6.4 to 6.6: mean seconds per request (two in 6.4.1; three, with the warming "
        "one, in the others) and stage",
        ("figure", "", "policy", *STAGES, "whole request"),
        tuple(rows),
    )


def draw_stages(runs: Mapping[str, Sequence[WinRun]], folder: Path) -> Path:
    """Write `figures.png`: bars are simulated, diamonds live."""
    path = folder / "figures.png"
    with styled():
        figure = Figure(figsize=_INCHES)
        panels = figure.subplots(len(WIN_SCENARIOS), 1, sharey=True)
        for axes, scenario in zip(panels, WIN_SCENARIOS, strict=True):
            _draw_workload(axes, scenario, runs)
        legend_below(panels[0])
        figure.savefig(path, dpi=DPI)
    return path


def _draw_workload(axes: Axes, scenario: WinScenario, runs: Mapping[str, Sequence[WinRun]]) -> None:
    width = 0.8 / len(POLICIES)
    label = "live"
    for index, policy in enumerate(POLICIES):
        x = np.arange(len(STAGES)) - 0.4 + width * (index + 0.5)
        if run := _run_of(runs.get("simulated", ()), scenario, policy):
            axes.bar(
                x,
                _drawn(run),
                width,
                color=COLOURS[index],
                hatch=HATCHES[index],
                edgecolor="white",
                linewidth=0,
                label=policy,
            )
        if run := _run_of(runs.get("live", ()), scenario, policy):
            axes.plot(x, _drawn(run), "D", color="black", markersize=4, label=label)
            label = "_"  # the legend lists live runs once
    axes.set_title(f"Figure {FIGURES[scenario.section]}: {scenario.title}; {scenario.winner} wins")
    axes.set_ylabel("Mean (s), logarithmic")
    axes.set_xticks(np.arange(len(STAGES)), STAGES)
    axes.set_xlim(-0.6, len(STAGES) - 0.4)
    axes.set_yscale("log")
    axes.set_ylim(_LEAST_S, _HEADROOM * THESIS_SLEEP_S)
    log_ticks(axes.yaxis)
    axes.grid(visible=False, axis="x")


def _drawn(run: WinRun) -> list[float]:
    stages_s = mean_stages_s(run.responses)
    return [stages_s[stage] if stages_s[stage] > _LEAST_S else np.nan for stage in STAGES]


def _run_of(runs: Sequence[WinRun], scenario: WinScenario, policy: str) -> WinRun | None:
    return next((each for each in runs if (each.scenario, each.policy) == (scenario, policy)), None)
