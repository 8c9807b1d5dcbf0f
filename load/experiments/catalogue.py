"""The experiments by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from load.experiments import liu_grid, liu_simple, liu_wins

if TYPE_CHECKING:
    from collections.abc import Mapping

    from load.experiments.experiment import Experiment

EXPERIMENTS: Final[Mapping[str, Experiment]] = {
    each.EXPERIMENT.name: each.EXPERIMENT for each in (liu_simple, liu_wins, liu_grid)
}
