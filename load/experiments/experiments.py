"""The experiments by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from load.experiments import (
    burst,
    liu_grid,
    liu_simple,
    liu_wins,
    prewarming,
    prewarming_live,
    scale,
    spike,
    traces,
    warsaw,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from load.experiments.experiment import Experiment

_ALL: Final = (
    liu_simple.EXPERIMENT,
    liu_wins.EXPERIMENT,
    liu_grid.EXPERIMENT,
    traces.EXPERIMENT,
    prewarming.EXPERIMENT,
    prewarming_live.EXPERIMENT,
    burst.EXPERIMENT,
    spike.EXPERIMENT,
    warsaw.EXPERIMENT,
    scale.EXPERIMENT,
)
EXPERIMENTS: Final[Mapping[str, Experiment]] = {each.name: each for each in _ALL}
