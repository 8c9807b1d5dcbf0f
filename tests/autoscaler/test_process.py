"""The autoscaler as a process, killed during a load."""

import pytest

from registry.domain.model import ModelSpec
from registry.redis.reports import ArrivalLog, AutoscalerLog
from tests import servers
from tests.autoscaler.conftest import Stage, model
from tests.registry.redis.clients import eventually, until

pytestmark = pytest.mark.slow

LIMIT_S = 480.0
"""A new process takes half a minute to start on a busy machine."""


async def _count_one_a_minute(stage: Stage, spec: ModelSpec) -> None:
    """Report one arrival a minute for the last three hours."""
    counts = [(spec.name, 1, 60 * minutes + 30) for minutes in range(180)]
    await ArrivalLog(stage.registry).report(f"gateway-of-{spec.name}", 1, counts, {})


async def test_another_process_takes_over_without_repeating_loads(stage: Stage) -> None:
    first, second = model("a"), model("b")
    await stage.registry.put_models([first, second])
    await _count_one_a_minute(stage, first)
    pod = await stage.pod("pod-a", holds=True)
    with servers.running("autoscaler", redis_url=stage.url, pool=stage.pool) as killed:
        await until(lambda: pod.loads == ["a"], timeout_s=LIMIT_S, what="the load to start")
        killed.kill()
        killed.wait()
    await _count_one_a_minute(stage, second)
    with servers.running("autoscaler", redis_url=stage.url, pool=stage.pool):
        await until(lambda: "b" in pod.loads, timeout_s=LIMIT_S, what="the successor")
        pod.hold.set()

        async def is_warm() -> bool:
            state = await stage.registry.cluster()
            return all(
                any(each.is_warm for each in state.holders(spec.key).values())
                for spec in (first, second)
            )

        await eventually(is_warm, timeout_s=LIMIT_S, what="both warm")
    assert pod.loads == ["a", "b"]
    last = (await AutoscalerLog(stage.registry).records()).last_by_model
    assert {last[str(spec.name)].reason for spec in (first, second)} == {"forecast"}
