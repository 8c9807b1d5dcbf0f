"""The experiments by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from load.experiments.elastic import burst, spike
from load.experiments.elvinger import drift
from load.experiments.elvinger import gpus as elvinger_gpus
from load.experiments.elvinger import plans as elvinger_plans
from load.experiments.liu import grid, replicas, simple, wins
from load.experiments.prewarm import prewarming, prewarming_live
from load.experiments.real_traces import traces
from load.experiments.regret import regret
from load.experiments.scaling import scale
from load.experiments.schedulers import warsaw
from load.experiments.sneakpeek import sneakpeek
from load.experiments.workflows import experiment as workflows
from load.experiments.workflows import scale as workflow_scale

if TYPE_CHECKING:
    from collections.abc import Mapping

    from load.experiments.harness.experiment import Experiment

_ALL: Final = (
    replicas.EXPERIMENT,
    simple.EXPERIMENT,
    wins.EXPERIMENT,
    grid.EXPERIMENT,
    traces.EXPERIMENT,
    prewarming.EXPERIMENT,
    prewarming_live.EXPERIMENT,
    burst.EXPERIMENT,
    spike.EXPERIMENT,
    warsaw.EXPERIMENT,
    regret.EXPERIMENT,
    scale.EXPERIMENT,
    elvinger_plans.EXPERIMENT,
    elvinger_gpus.GPUS,
    elvinger_gpus.LOAD,
    drift.EXPERIMENT,
    sneakpeek.EXPERIMENT,
    workflows.EXPERIMENT,
    workflow_scale.EXPERIMENT,
)
EXPERIMENTS: Final[Mapping[str, Experiment]] = {each.name: each for each in _ALL}
