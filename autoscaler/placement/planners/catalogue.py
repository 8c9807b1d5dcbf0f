"""The planners by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autoscaler.placement.planners.igniter import igniter
from autoscaler.placement.planners.milp import ao_milp, wao_milp, wsm_milp
from autoscaler.placement.planners.predicted_goodput import predicted_goodput
from autoscaler.placement.planners.problem import Metric
from autoscaler.placement.planners.usher import usher, wao_usher, wsm_usher

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.placement.planners.plan import Plan

PLANNERS: Final[Mapping[str, Plan]] = {
    "usher": usher,
    "wao-usher": wao_usher,
    "wsm-usher": wsm_usher,
    "ao-milp": ao_milp,
    "wao-milp": wao_milp,
    "wsm-milp": wsm_milp,
    "igniter": igniter,
    "predicted-goodput": predicted_goodput,
}
BY_COEFFICIENTS: Final = frozenset({"igniter"})
"""Planners that need iGniter's coefficients instead of measured batches."""
METRICS: Final[Mapping[str, Metric]] = {
    "usher": Metric.ACHIEVED_OCCUPANCY,
    "wao-usher": Metric.MEAN_OCCUPANCY,
    "wsm-usher": Metric.SM_UTILIZATION,
    "ao-milp": Metric.ACHIEVED_OCCUPANCY,
    "wao-milp": Metric.MEAN_OCCUPANCY,
    "wsm-milp": Metric.SM_UTILIZATION,
}
"""What planners that add up needs take for compute."""
