"""Utility, accuracy and deadline misses of runs with labelled examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from load.report.answers import summarise_answers
from load.report.style import (
    COLOURS,
    LeftOut,
    Plot,
    labels,
    legend_below,
    not_shown_note,
    one_axes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load.report.run import Run


def utility(runs: Sequence[Run]) -> Plot | LeftOut:
    """Mean utility, share of right answers and of missed deadlines, by run."""
    heading = "Utility of applications' requests"
    found = [(run, summary) for run in runs if (summary := summarise_answers(run)) is not None]
    if not found:
        return LeftOut(heading, "no run has labelled examples (`load run --examples`)")
    run_labels = labels([run.name for run in runs])
    best, highest = max(found, key=lambda each: each[1]["utility"])
    figure, axes = one_axes(
        f"{run_labels[best.name]} has the highest mean utility: {highest['utility']:.3f}",
        "Run", "Mean over requests",
    )  # fmt: skip
    series = (
        ("utility", [each["utility"] for _, each in found]),
        ("right answers", [each["accuracy"] or 0.0 for _, each in found]),
        ("missed deadlines", [each["missed"] / each["requests"] for _, each in found]),
    )
    places = np.arange(len(found))
    for at, (name, values) in enumerate(series):
        axes.bar(places + (at - 1) * 0.27, values, 0.25, label=name, color=COLOURS[at])
    axes.set_xticks(places, [run_labels[run.name] for run, _ in found])
    axes.set_ylim(0, 1)
    legend_below(axes)
    caption = (
        "Utility is 1 less the penalty of lateness for a right answer, else 0 (Wolfrath et al. "
        f"2025, eq. 2).{not_shown_note(run_labels, [run for run, _ in found])}"
    )
    return Plot("utility", heading, caption, figure)
