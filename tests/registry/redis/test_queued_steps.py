"""Steps at pods as every copy of the registry knows them, from their reservations."""

import pytest

from registry.domain.pod_state import Granted, step_reservation_id
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from tests.registry.redis.clients import KEY, Pod, eventually, release, reserve, running, until
from tests.registry.redis.conftest import Connect

OTHER = "default/other@1"


async def put_step(registry: Registry, name: str, key: str = KEY, ttl_s: float = 60.0) -> str:
    id_ = step_reservation_id(name, key)
    granted = await reserve(registry, "a", key=key, id_=id_, takes_slot=False, ttl_s=ttl_s)
    assert isinstance(granted, Granted)
    return id_


async def queued(registry: Registry) -> dict[str, dict[str, int]]:
    """By pod and model, as a new copy reads it."""
    state = await registry.cluster()
    return {pod: dict(steps.counts) for pod, steps in state.queued_steps.items()}


async def test_steps_are_counted_by_model(registry: Registry) -> None:
    pod = await Pod.join_warm(registry, "a", slots=1)
    await pod.load(OTHER)
    first = await put_step(registry, "s1")
    second = await put_step(registry, "s2")
    await put_step(registry, "s3", OTHER)
    assert isinstance(await reserve(registry, "a", id_="request"), Granted)
    assert await queued(registry) == {"a": {KEY: 2, OTHER: 1}}
    await release(registry, first, "a")
    await registry.end_inference("a", second)
    assert await queued(registry) == {"a": {OTHER: 1}}


async def test_steps_of_a_dead_gateway_expire(registry: Registry) -> None:
    await Pod.join_warm(registry, "a")
    await put_step(registry, "s1", ttl_s=0.05)

    async def is_empty() -> bool:
        return await queued(registry) == {}

    await eventually(is_empty, what="step expired")


async def test_a_pod_that_registers_again_has_no_steps(registry: Registry) -> None:
    await Pod.join_warm(registry, "a")
    await put_step(registry, "s1")
    await Pod.join_warm(registry, "a")
    assert await queued(registry) == {}


async def test_at_most_64_models_are_published(registry: Registry) -> None:
    pod = await Pod.join_warm(registry, "a")
    for number in range(70):
        key = f"default/m{number}@1"
        await pod.load(key)
        await put_step(registry, f"s{number}", key)
    assert len((await queued(registry))["a"]) == 64


@pytest.mark.usefixtures("without_syncs")
async def test_copies_follow_each_step(registry: Registry, connect: Connect) -> None:
    await Pod.join_warm(registry, "a")
    async with running(ClusterWatch(await connect())) as copy:
        steps = copy.state.queued_steps
        first = await put_step(registry, "s1")
        await until(lambda: steps["a"].counts == {KEY: 1} if "a" in steps else False)
        await put_step(registry, "s2")
        await until(lambda: steps["a"].counts == {KEY: 2})
        since_s = steps["a"].since_s
        await release(registry, first, "a")
        await until(lambda: steps["a"].counts == {KEY: 1})
        assert steps["a"].since_s > since_s, "the pod can have begun it since the first one ended"
        await registry.end_inference("a", step_reservation_id("s2", KEY))
        await until(lambda: not steps)
        assert copy.repairs_total == 0
