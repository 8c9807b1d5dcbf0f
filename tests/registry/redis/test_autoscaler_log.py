"""The leader's lease, actions and wanted pods in the registry."""

import asyncio
from dataclasses import replace

import pytest
import redis.asyncio

from registry.domain.demand import ExpectedRates
from registry.domain.model import LoadingPolicyName, ModelName, ModelPolicy, PlacementName
from registry.domain.records import (
    POOL,
    ActionOutcome,
    ActionRecord,
    PlacedPod,
    PlacedReplica,
    PlacementRecord,
    PlannedModel,
    PodShape,
    WantedPods,
)
from registry.errors import InvalidModel
from registry.redis.client import Registry
from registry.redis.reports import AutoscalerLog, BeginResult
from registry.redis.watch import ClusterWatch
from tests.registry.redis.clients import SPEC, eventually, running, until
from tests.registry.redis.conftest import Connect
from tests.servers import RedisServer

NAME = str(SPEC.name)
LOAD = ActionRecord("load", NAME, "forecast", "expected soon", 10.0, pod="a", tier="device")
SCALE = ActionRecord("scale", POOL, "waiting", "2 requests queued", 10.0)


async def _acquire(registry: Registry, holder: str, *, ttl_s: float = 30.0) -> int:
    token = await AutoscalerLog(registry).acquire_lead(holder, ttl_s=ttl_s)
    assert token is not None
    return token


async def test_one_autoscaler_leads(registry: Registry) -> None:
    tokens = await asyncio.gather(
        *(
            AutoscalerLog(registry).acquire_lead(f"autoscaler-{index}", ttl_s=30)
            for index in range(20)
        )
    )
    assert sum(token is not None for token in tokens) == 1


async def test_a_model_for_another_loading_policy_than_the_leaders_is_refused(
    registry: Registry,
) -> None:
    log = AutoscalerLog(registry)
    wanted = replace(SPEC, policy=ModelPolicy(loading=LoadingPolicyName.CLOCKWORK))
    assert await registry.put_models([wanted]) == ["created"]  # no autoscaler leads
    token = await log.acquire_lead("one", ttl_s=30, loading="predictive")
    other = replace(SPEC, name=ModelName("default", "other"))
    with pytest.raises(InvalidModel, match="must be 'predictive', the loading policy of pool"):
        await registry.put_models([other, wanted])
    assert await registry.get_model(other.name) is None
    assert await registry.put_models([other]) == ["created"]
    assert token is not None
    await log.release_lead(token)
    await log.acquire_lead("two", ttl_s=30, loading="clockwork")
    assert await registry.put_models([wanted]) == ["unchanged"]
    found = await registry.get_model(SPEC.name)
    assert found is not None
    assert found.spec.policy.loading == LoadingPolicyName.CLOCKWORK


async def test_a_leader_of_an_older_version_allows_every_loading_policy(registry: Registry) -> None:
    await registry.transactions.submit("lead", "old", 30_000)
    wanted = replace(SPEC, policy=ModelPolicy(loading=LoadingPolicyName.CLOCKWORK))
    assert await registry.put_models([wanted]) == ["created"]


async def test_the_leader_keeps_its_token(registry: Registry) -> None:
    assert await _acquire(registry, "one") == await _acquire(registry, "one")


async def test_another_autoscaler_leads_after_the_lease_ends(registry: Registry) -> None:
    log = AutoscalerLog(registry)
    first = await _acquire(registry, "one", ttl_s=0.2)

    async def second_leads() -> bool:
        return await log.acquire_lead("two", ttl_s=30) is not None

    await eventually(second_leads)
    assert await _acquire(registry, "two") > first
    assert await log.begin_action(first, LOAD, ttl_s=30) is BeginResult.FENCED
    assert not await log.set_wanted_pods(first, WantedPods((PodShape(3),)), SCALE)
    assert (await log.ongoing()).wanted is None


async def test_after_the_lease_there_is_no_leader(registry: Registry) -> None:
    log = AutoscalerLog(registry)
    await _acquire(registry, "one", ttl_s=120)
    leader = (await log.records()).leader
    assert leader is not None
    assert leader.holder == "one"
    await _acquire(registry, "one", ttl_s=0.1)

    async def is_over() -> bool:
        return (await log.records()).leader is None

    await eventually(is_over)


async def test_a_lease_with_more_time_left_than_its_ttl_is_over(
    registry: Registry, server: RedisServer
) -> None:
    """Such as a lease taken before Redis' clock was set back."""
    await _acquire(registry, "one")
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.hincrby(f"{registry.transactions.prefix}leader", "until", 3_600_000)
    assert (await AutoscalerLog(registry).records()).leader is None
    assert await _acquire(registry, "two") > 0


async def test_a_former_leader_can_begin_no_action(registry: Registry) -> None:
    log = AutoscalerLog(registry)
    token = await _acquire(registry, "one")
    await log.release_lead(token)
    assert await log.begin_action(token, LOAD, ttl_s=30) is BeginResult.FENCED
    assert await _acquire(registry, "two") > token


async def test_an_ongoing_action_does_not_begin_again(registry: Registry) -> None:
    await registry.put_models([SPEC])
    log = AutoscalerLog(registry)
    first = await _acquire(registry, "one")
    assert await log.begin_action(first, LOAD, ttl_s=30) is BeginResult.OK
    await log.release_lead(first)
    second = await _acquire(registry, "two")
    assert (await log.ongoing()).actions == (LOAD,)
    assert await log.begin_action(second, LOAD, ttl_s=30) is BeginResult.BUSY
    done = replace(LOAD, outcome=ActionOutcome.DONE)
    await log.end_action(done)
    records = await log.records()
    assert records.ongoing.actions == ()
    assert records.last_by_model == {NAME: done}
    assert records.history == (done,)
    assert await log.begin_action(second, LOAD, ttl_s=30) is BeginResult.OK


async def test_an_action_without_an_end_expires(registry: Registry) -> None:
    log = AutoscalerLog(registry)
    token = await _acquire(registry, "one")
    assert await log.begin_action(token, LOAD, ttl_s=0.2) is BeginResult.OK

    async def may_begin() -> bool:
        return await log.begin_action(token, LOAD, ttl_s=0.2) is BeginResult.OK

    await eventually(may_begin)


async def test_the_history_of_actions_is_bounded(registry: Registry) -> None:
    await registry.put_models([SPEC])
    log = AutoscalerLog(registry)
    token = await _acquire(registry, "one")
    for index in range(150):
        await log.begin_action(token, replace(LOAD, pod=f"pod-{index}"), ttl_s=30)
    await log.begin_action(token, replace(LOAD, subject="default/unknown"), ttl_s=30)
    records = await log.records()
    assert len(records.history) == 100
    assert list(records.last_by_model) == [NAME]
    await registry.delete_models([SPEC.name])
    assert (await log.records()).last_by_model == {}


async def test_wanted_pods_are_published(registry: Registry, connect: Connect) -> None:
    log = AutoscalerLog(registry)
    token = await _acquire(registry, "one")
    watch = ClusterWatch(await connect())
    async with running(watch):
        assert watch.state.wanted is None
        assert await log.set_wanted_pods(token, WantedPods((PodShape(2),), ("pod-1",)), SCALE)
        await until(lambda: watch.state.wanted == WantedPods((PodShape(2),), ("pod-1",)))
    later = ClusterWatch(await connect())
    async with running(later):
        await until(lambda: later.state.wanted == WantedPods((PodShape(2),), ("pod-1",)))


async def test_expected_rates_are_published_to_gateways(
    registry: Registry, connect: Connect
) -> None:
    log = AutoscalerLog(registry)
    token = await _acquire(registry, "one")
    gateway, pod = ClusterWatch(await connect()), ClusterWatch(await connect(), counts=False)
    first, second = ExpectedRates({"a": 1.0}, 10.0), ExpectedRates({"a": 2.0}, 15.0)
    async with running(gateway), running(pod):
        assert await log.publish_expected_rates(token, first)
        await until(lambda: gateway.state.expected_rates == first)
        await registry.put_models([SPEC])
        await until(lambda: SPEC.name in pod.state.models)
        assert pod.state.expected_rates == ExpectedRates()
    later = ClusterWatch(await connect())
    async with running(later):
        await until(lambda: later.state.expected_rates == first)
        await log.release_lead(token)
        assert not await log.publish_expected_rates(token, ExpectedRates({"a": 9.0}, 12.0))
        assert await log.publish_expected_rates(await _acquire(registry, "two"), second)
        await until(lambda: later.state.expected_rates == second)


async def test_the_same_wanted_pods_again_have_no_effect(registry: Registry) -> None:
    log = AutoscalerLog(registry)
    token = await _acquire(registry, "one")
    for _ in range(3):
        assert await log.set_wanted_pods(token, WantedPods((PodShape(2),)), SCALE)
    assert len((await log.records()).history) == 1


_PLACED = PlacedReplica(NAME, "cpu-0", 8, 50.0, 12.5)
_PLANNED = PlannedModel(NAME, 20.0, 0.2, 12.5, "short")
_PLACEMENT = PlacementRecord(
    "usher",
    "first plan",
    10.0,
    ("cpu-0", "cpu-1"),
    (_PLANNED,),
    (_PLACED,),
    (PlacedPod("placed-0", _PLACED, 10.0),),
    1,
)


async def test_a_placement_is_published_and_kept_for_new_copies(
    registry: Registry, connect: Connect
) -> None:
    log, other = AutoscalerLog(registry), ClusterWatch(await connect())
    token = await _acquire(registry, "one")
    plan = ActionRecord("place", POOL, "usher", "first plan", 10.0, outcome=ActionOutcome.DONE)
    async with running(other):
        await other.wait_synced()
        assert await log.set_placement(token, _PLACEMENT, plan)
        await until(lambda: other.state.placement == _PLACEMENT)
        moved = replace(_PLACEMENT, pods=())
        assert await log.set_placement(token, moved)
        await until(lambda: other.state.placement == moved)
    assert (await registry.cluster()).placement == moved
    assert [each.verb for each in (await log.records()).history] == ["place"]


async def test_a_former_leader_cannot_place(registry: Registry) -> None:
    log = AutoscalerLog(registry)
    token = await _acquire(registry, "one")
    await log.release_lead(token)
    assert not await log.set_placement(token, _PLACEMENT)
    assert (await registry.cluster()).placement is None


async def test_a_model_for_another_planner_than_the_leaders_is_refused(registry: Registry) -> None:
    await AutoscalerLog(registry).acquire_lead("one", ttl_s=30, placement="usher")
    wanted = replace(SPEC, policy=ModelPolicy(placement="ao-milp"))
    with pytest.raises(InvalidModel, match="must be 'off' or 'usher', the planner of pool"):
        await registry.put_models([wanted])
    spared = replace(SPEC, policy=ModelPolicy(placement=PlacementName.OFF))
    assert await registry.put_models([spared]) == ["created"]
