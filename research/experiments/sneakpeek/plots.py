"""The picture of the experiment: utility of each policy over deadlines (figure 11a)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.figure


def draw_deadlines(curves: Mapping[str, Sequence[tuple[float, float]]], folder: Path) -> Path:
    """Writes `sneakpeek.png` and returns its path."""
    figure = matplotlib.figure.Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    for policy, curve in curves.items():
        axes.plot([ms for ms, _ in curve], [value for _, value in curve], marker="o", label=policy)
    axes.set_xlabel("mean deadline (ms)")
    axes.set_ylabel("mean utility (simulated)")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sneakpeek.png"
    figure.savefig(path, dpi=120)
    return path
