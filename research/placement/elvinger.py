"""Usher and the mixed-integer program of Elvinger 2024, each by three metrics of compute.

`predicted-goodput` begins its search at Usher's plans, which is why that is the product's.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from autoscaler.placement.plan import Placement, Plan
from autoscaler.placement.problem import AcceleratorView, Metric, PlanParams, Profiles, Workload
from autoscaler.placement.usher import plan_usher
from registry.domain.records import PlacedReplica
from research.placement.milp import plan_milp

ByMetric: TypeAlias = Callable[
    [Metric, Sequence[Workload], Sequence[AcceleratorView], Profiles, PlanParams], Placement
]


def _planner(plan: ByMetric, metric: Metric) -> Plan:
    def planned(
        workloads: Sequence[Workload],
        accelerators: Sequence[AcceleratorView],
        profiles: Profiles,
        _current: Sequence[PlacedReplica],
        params: PlanParams,
    ) -> Placement:
        return plan(metric, workloads, accelerators, profiles, params)

    return planned


USHER: Final = _planner(plan_usher, Metric.ACHIEVED_OCCUPANCY)
WAO_USHER: Final = _planner(plan_usher, Metric.MEAN_OCCUPANCY)
WSM_USHER: Final = _planner(plan_usher, Metric.SM_UTILIZATION)
AO_MILP: Final = _planner(plan_milp, Metric.ACHIEVED_OCCUPANCY)
WAO_MILP: Final = _planner(plan_milp, Metric.MEAN_OCCUPANCY)
WSM_MILP: Final = _planner(plan_milp, Metric.SM_UTILIZATION)
