"""An autoscaler with an actuator that has the bounds and size of the pool, as on a cluster."""

import itertools
from dataclasses import dataclass, field

from autoscaler.act import PoolSize
from autoscaler.loading_policies import LOADING_POLICIES
from autoscaler.policy import Limits
from registry.domain.demand import QueueStats
from registry.domain.pool_demand import PoolAdvice
from registry.domain.records import PodShape, WantedPods
from registry.errors import RegistryUnavailable
from registry.redis.reports import ArrivalLog, AutoscalerLog
from tests.autoscaler.conftest import Stage, metric, model
from tests.registry.redis.clients import eventually, until

LIMIT_S = 120.0


@dataclass
class RecordingActuator:
    """Records its calls."""

    given: PoolSize | None
    wanted: list[int] = field(default_factory=list)
    is_leading: bool = False
    is_cut_off: bool = False
    failures: int = 0
    """Calls of `scale_to` that are yet to fail."""

    def size(self) -> PoolSize | None:
        if self.is_cut_off:
            raise RegistryUnavailable("cut off")
        return self.given

    def set_leading(self, *, is_leading: bool) -> None:
        self.is_leading = is_leading

    def scale_to(self, target: WantedPods) -> None:
        if self.failures:
            self.failures -= 1
            raise ZeroDivisionError("a mistake of the actuator")
        self.wanted.append(target.pods)

    def advice(self) -> PoolAdvice | None:
        return PoolAdvice(self.wanted[-1]) if self.wanted else None


async def test_a_number_that_the_actuator_did_not_take_is_planned_again(stage: Stage) -> None:
    actuator = RecordingActuator(PoolSize(Limits(2, 4), pods=1), failures=1)
    policy = LOADING_POLICIES["predictive"]()
    async with stage.autoscaler(policy, actuator=actuator) as metrics:
        await until(lambda: actuator.wanted == [2], timeout_s=15, what="the number")
        assert metric(metrics, "pilotlight_autoscaler_failures_total", cause="tick") == 1


async def test_starts_from_the_existing_pods_and_respects_the_bounds(stage: Stage) -> None:
    actuator = RecordingActuator(PoolSize(Limits(1, 4), pods=3))
    policy = LOADING_POLICIES["predictive"]()
    async with stage.autoscaler(policy, actuator=actuator, pod_stable=0.1, pod_idle=0.1):
        await until(lambda: actuator.wanted[-1:] == [1], timeout_s=LIMIT_S, what="the minimum")
        actuator.given = PoolSize(Limits(2, 4), pods=1)
        await until(lambda: actuator.wanted[-1:] == [2], timeout_s=LIMIT_S, what="the new minimum")
        assert actuator.is_leading
    assert actuator.wanted == [3, 1, 2]
    wanted = (await AutoscalerLog(stage.registry).ongoing()).wanted
    assert wanted == WantedPods((PodShape(2),))


async def test_the_actuators_size_precedes_the_registrys_record(stage: Stage) -> None:
    policy = LOADING_POLICIES["predictive"]()
    async with stage.autoscaler(policy, min_pods=4):
        scaling = AutoscalerLog(stage.registry)

        async def is_recorded() -> bool:
            return (await scaling.ongoing()).wanted == WantedPods((PodShape(4),))

        await eventually(is_recorded, timeout_s=LIMIT_S, what="four pods wanted")
    actuator = RecordingActuator(PoolSize(Limits(0, None), pods=2))
    async with stage.autoscaler(policy, actuator=actuator):
        await until(lambda: actuator.wanted, timeout_s=LIMIT_S, what="the target")
    assert actuator.wanted == [2]


async def test_repeats_the_target_after_a_registry_outage(stage: Stage) -> None:
    actuator = RecordingActuator(PoolSize(Limits(2, 2), pods=2))
    async with stage.autoscaler(LOADING_POLICIES["predictive"](), actuator=actuator):
        await until(lambda: actuator.wanted == [2], timeout_s=LIMIT_S, what="the target")
        actuator.is_cut_off = True
        await until(lambda: not actuator.is_leading, timeout_s=LIMIT_S, what="the lead to end")
        actuator.is_cut_off = False
        await until(
            lambda: actuator.wanted == [2, 2], timeout_s=LIMIT_S, what="the repeated target"
        )


async def test_does_not_plan_pods_scaled_elsewhere(stage: Stage) -> None:
    await stage.registry.put_models([model("a")])
    actuator = RecordingActuator(None)
    policy = LOADING_POLICIES["predictive"]()
    async with stage.autoscaler(policy, actuator=actuator) as metrics:
        waiting = {model("a").name: QueueStats(40, 0, 0.0)}
        sequence = itertools.count(1)

        async def report() -> None:
            await ArrivalLog(stage.registry).report("gateway", next(sequence), [], waiting)

        async def is_woken() -> bool:
            await report()
            return actuator.wanted[-1:] == [1]

        await report()
        plans = "pilotlight_autoscaler_plan_seconds_count"
        await until(lambda: metric(metrics, plans) >= 5, timeout_s=LIMIT_S, what="five plans")
        assert actuator.wanted == []
        actuator.given = PoolSize(Limits(0, 5), pods=0)
        await eventually(is_woken, timeout_s=LIMIT_S, what="one pod wanted")
