"""Whether a figure is worse than what is recorded, and the table that says so.

A figure is a ratio: its cost divided by that of a yardstick which was measured between its bursts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

MARGIN: Final = 0.10
"""A figure may be worse by this share of the recorded ratio, and by its spread."""
_CHANCE: Final = 0.02
"""Of a failure because bursts were disturbed, where nothing else has changed."""


@dataclass(frozen=True, slots=True)
class Known:
    """What `guard.json` has of a figure."""

    ratio: float
    spread: float
    """By how much runs of the same code differ, as a share of the ratio."""

    def allowed(self, margin: float = MARGIN) -> float:
        return self.ratio * (1 + self.spread + margin)


@dataclass(frozen=True, slots=True)
class Measured:
    """The ratios of pairs of bursts."""

    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def least(self) -> float:
        """What the true median is above, but for `_CHANCE`: so few heads in as many tosses."""
        count = len(self.ratios)
        below, place = 0.5**count, 0
        while below <= _CHANCE:
            place += 1
            below += math.comb(count, place) * 0.5**count
        return sorted(self.ratios)[max(0, place - 1)]


def known_of(ratios: Sequence[float]) -> Known:
    """What to record after several runs of the same code."""
    middle = median(ratios)
    return Known(round(middle, 4), round((max(ratios) - min(ratios)) / middle, 4))


def problem(
    name: str, measured: Measured, known: Mapping[str, Known], margin: float = MARGIN
) -> str:
    """Why the figure fails; empty: it does not."""
    if name not in known:
        return f"{name} is {measured.ratio:.3f}, but guard.json has no such figure: use --write"
    allowed = known[name].allowed(margin)
    if measured.least <= allowed:
        return ""
    return (
        f"{name} is {measured.ratio:.3f} times its yardstick (surely above {measured.least:.3f}), "
        f"allowed {allowed:.3f}"
    )


def problems_of(
    figures: Mapping[str, Measured], known: Mapping[str, Known], margin: float = MARGIN
) -> list[str]:
    """Those of all figures, and of recorded ones that were not measured."""
    found = [problem(name, measured, known, margin) for name, measured in figures.items()]
    left = sorted(known.keys() - figures.keys())
    found += [f"guard.json has {name}, which is not measured: use --write" for name in left]
    return [*filter(None, found)]


def table(
    figures: Mapping[str, Measured], known: Mapping[str, Known], margin: float = MARGIN
) -> str:
    """A line per figure, in Markdown."""
    lines = ["| figure | ratio | surely above | recorded | allowed | |", "|---" * 6 + "|"]
    for name, measured in figures.items():
        numbers = [measured.ratio, measured.least]
        if name in known:
            numbers += [known[name].ratio, known[name].allowed(margin)]
        cells = [f"{each:.3f}" for each in numbers] + ["-"] * (4 - len(numbers))
        verdict = "WORSE" if problem(name, measured, known, margin) else "ok"
        lines.append(f"| {name} | {' | '.join(cells)} | {verdict} |")
    return "\n".join(lines)
