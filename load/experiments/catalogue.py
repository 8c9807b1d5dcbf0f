"""The experiments by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from load.experiments import liu_simple, prewarming

if TYPE_CHECKING:
    from collections.abc import Mapping

    from load.experiments.experiment import Experiment

EXPERIMENTS: Final[Mapping[str, Experiment]] = {
    each.EXPERIMENT.name: each.EXPERIMENT for each in (liu_simple, prewarming)
}
