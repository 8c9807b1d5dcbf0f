"""A registry that lost its data: no pod is removed before it could register again."""

from functools import partial
from pathlib import Path

import pytest

from autoscaler.loading_policies import LOADING_POLICIES
from autoscaler.metrics import AutoscalerMetrics
from registry.domain.records import WantedPods
from registry.errors import RegistryUnavailable
from registry.redis.reports import AutoscalerLog
from tests import servers
from tests.autoscaler.conftest import Pod, Stage, a_stage, metric
from tests.registry.redis.clients import eventually, until

LIMIT_S = 120.0
PODS = 3
FAILURES = "pilotlight_autoscaler_failures_total"
PLANS = "pilotlight_autoscaler_plan_seconds_count"


async def test_keeps_the_number_of_pods_while_they_register_again(tmp_path: Path) -> None:
    with servers.redis_server(tmp_path / "redis") as redis:
        async with a_stage(redis.url) as stage:
            pods = [await stage.pod(f"pod-{index}") for index in range(PODS)]
            policy = LOADING_POLICIES["predictive"]()
            async with stage.autoscaler(policy, min_pods=0, max_pods=5) as metrics:

                async def is_recorded() -> bool:
                    return await _wanted(stage) is not None

                await eventually(is_recorded, timeout_s=LIMIT_S, what="the record")
                redis.stop()
                redis.start()
                await eventually(is_recorded, timeout_s=LIMIT_S, what="the record without any pod")
                numbers = [await _wanted(stage)]
                for pod in pods:
                    await eventually(
                        partial(_registers, pod), timeout_s=LIMIT_S, what="the registration"
                    )
                    await _planned(metrics, 3)
                    numbers.append(await _wanted(stage))
    assert [wanted and wanted.pods for wanted in numbers] == [PODS] * 4


@pytest.mark.slow
async def test_a_new_autoscaler_waits_for_pods_to_register(tmp_path: Path) -> None:
    with servers.redis_server(tmp_path / "redis") as redis:
        async with a_stage(redis.url) as stage:
            pods = [await stage.pod(f"pod-{index}") for index in range(PODS)]
            redis.stop()
            redis.start()
            policy = LOADING_POLICIES["predictive"]()
            async with stage.autoscaler(policy, min_pods=1, max_pods=5, lease_s=2.0) as metrics:

                async def is_recorded() -> bool:
                    return await _wanted(stage) is not None

                await _planned(metrics, 2)
                for pod in pods:
                    await eventually(
                        partial(_registers, pod), timeout_s=LIMIT_S, what="the registration"
                    )
                await eventually(is_recorded, timeout_s=LIMIT_S, what="the record")
                history = (await AutoscalerLog(stage.registry).records()).history
    assert [each.detail.partition(":")[0] for each in history] == [f"{PODS} pods"]


async def test_an_outage_is_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with servers.redis_server(tmp_path / "redis") as redis:
        async with a_stage(redis.url) as stage:
            policy = LOADING_POLICIES["predictive"]()
            async with stage.autoscaler(policy, min_pods=1, max_pods=5) as metrics:
                await _planned(metrics, 1)
                redis.stop()
                await until(
                    lambda: metric(metrics, FAILURES, cause="registry-away") >= 3,
                    timeout_s=LIMIT_S,
                    what="three ticks without the registry",
                )
    lines = [each for each in caplog.records if each.name == "autoscaler.loop"]
    away_lines = [each for each in lines if "registry is unavailable" in each.message]
    assert [each.exc_info for each in away_lines] == [None]


async def _planned(metrics: AutoscalerMetrics, plans: int) -> None:
    before = metric(metrics, PLANS)
    await until(lambda: metric(metrics, PLANS) >= before + plans, timeout_s=LIMIT_S, what=PLANS)


async def _registers(pod: Pod) -> bool:
    try:
        await pod.register()
    except RegistryUnavailable:
        return False
    return True


async def _wanted(stage: Stage) -> WantedPods | None:
    try:
        return (await AutoscalerLog(stage.registry).ongoing()).wanted
    except RegistryUnavailable:
        return None
