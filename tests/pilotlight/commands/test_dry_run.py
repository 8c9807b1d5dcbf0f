"""`autoscaler --dry-run`: the plan of a tick, observed and forecast, without any action."""

from pilotlight.commands.autoscaler import _plan_once
from registry.domain.model import ModelName, ModelSpec, Preload
from registry.domain.model import ModelPolicy as Policy
from registry.domain.pod import PodInfo
from registry.redis.client import Registry
from registry.redis.reports import AutoscalerLog
from tests.gateway.asynchronous import run_async
from tests.servers import RedisServer


@run_async
async def test_a_plan_is_made_with_a_forecast_and_not_acted_on(redis: RedisServer) -> None:
    registry = await Registry.connect(redis.url, "dry-run")
    eager = ModelSpec(
        ModelName("default", "m"), "s3://models/m", policy=Policy(preload=Preload.EAGER)
    )
    await registry.put_models([eager])
    await registry.register_pod(PodInfo("p", "p:1", "n", memory_bytes=10**9), lease_ttl_s=600)
    plan = await _plan_once(registry, "predictive")
    assert plan.view.demand is not None
    assert [type(each).__name__ for each in plan.actions] == ["Load"]
    records = await AutoscalerLog(registry).records()
    assert (records.leader, records.history) == (None, ())
    await registry.close()
