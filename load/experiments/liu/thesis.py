"""The thesis's figures, by their number in `sigmaos_results.csv`; none where the file is absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from load.experiments.published_figures import absent, reported_figures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from load.experiments.experiment import Settings

FILE: Final = "sigmaos_results.csv"
ABSENT: Final = absent(FILE)


def thesis_figures(settings: Settings) -> Mapping[int, float]:
    """Value by number; claims whose value is a range are left out. Raises ExperimentError."""
    return reported_figures(settings, FILE)
