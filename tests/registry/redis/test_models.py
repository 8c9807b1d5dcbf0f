import dataclasses

import pytest

from registry.domain.model import (
    ModelName,
    ModelPolicy,
    ModelRecord,
    ModelSpec,
    RoutingPolicy,
    Tier,
)
from registry.redis.client import Registry
from tests.registry.redis.clients import SPEC, Pod, failure

NEXT = dataclasses.replace(SPEC, storage_uri="s3://models/two")
LAST = dataclasses.replace(SPEC, storage_uri="s3://models/three")


async def record(registry: Registry) -> ModelRecord:
    found = await registry.get_model(SPEC.name)
    assert found is not None
    assert (await registry.cluster()).models[SPEC.name] == found
    return found


async def test_models_are_stored_as_declared(registry: Registry) -> None:
    other = ModelSpec(ModelName("a", "z"), "file:///x")
    assert await registry.put_models([SPEC, other]) == ["created", "created"]
    models = (await registry.cluster()).models
    assert {name: each.spec for name, each in models.items()} == {
        SPEC.name: SPEC,
        other.name: other,
    }
    assert await registry.get_model(ModelName("a", "unknown")) is None


async def test_declaring_no_models_is_allowed(registry: Registry) -> None:
    assert await registry.put_models([]) == []
    assert (await registry.cluster()).models == {}
    assert await registry.delete_models([]) == []


async def test_outcomes_are_created_unchanged_or_configured(registry: Registry) -> None:
    policy = dataclasses.replace(SPEC, policy=ModelPolicy(routing=RoutingPolicy.RANDOM))
    assert await registry.put_models([SPEC]) == ["created"]
    assert await registry.put_models([SPEC]) == ["unchanged"]
    assert await registry.put_models([policy]) == ["configured"]
    assert (await record(registry)).spec == policy


async def test_delete_returns_unknown_names(registry: Registry) -> None:
    unknown = ModelName("default", "unknown")
    await registry.put_models([SPEC])
    assert await registry.delete_models([SPEC.name, unknown]) == [unknown]
    assert (await registry.cluster()).models == {}
    assert await registry.delete_models([SPEC.name]) == [SPEC.name]


async def test_the_old_generation_serves_until_the_new_one_is_warm(registry: Registry) -> None:
    await registry.put_models([SPEC])
    pod, other = await Pod.join(registry, "a"), await Pod.join(registry, "b")
    await pod.load(SPEC.key)
    await registry.put_models([NEXT])
    assert await record(registry) == ModelRecord(NEXT, previous=SPEC)
    assert (await record(registry)).serving == SPEC
    token = await other.claim_token(NEXT.key)
    assert (await record(registry)).previous == SPEC
    await other.finish(token, NEXT.key)
    assert await record(registry) == ModelRecord(NEXT)


async def test_a_change_of_policy_keeps_the_previous_generation(registry: Registry) -> None:
    await registry.put_models([SPEC])
    await (await Pod.join(registry, "a")).load(SPEC.key)
    await registry.put_models([NEXT])
    changed = dataclasses.replace(NEXT, policy=ModelPolicy(priority=5))
    await registry.put_models([changed])
    assert await record(registry) == ModelRecord(changed, previous=SPEC)


async def test_a_cold_generation_leaves_no_previous(registry: Registry) -> None:
    await registry.put_models([SPEC])
    await registry.put_models([NEXT])
    assert await record(registry) == ModelRecord(NEXT)


async def test_two_changes_in_a_row_keep_the_one_that_is_warm(registry: Registry) -> None:
    await registry.put_models([SPEC])
    await (await Pod.join(registry, "a")).load(SPEC.key)
    await registry.put_models([NEXT])
    await registry.put_models([LAST])
    assert await record(registry) == ModelRecord(LAST, previous=SPEC)


async def test_declaring_the_previous_generation_again_ends_the_change(registry: Registry) -> None:
    await registry.put_models([SPEC])
    await (await Pod.join(registry, "a")).load(SPEC.key)
    await registry.put_models([NEXT])
    await registry.put_models([SPEC])
    assert await record(registry) == ModelRecord(SPEC)


async def test_a_generation_that_is_warm_already_serves_at_once(registry: Registry) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join(registry, "a")
    await pod.load(SPEC.key)
    await pod.load(NEXT.key)
    await registry.put_models([NEXT])
    assert await record(registry) == ModelRecord(NEXT)


@pytest.mark.parametrize("end", ["evicted", "left"])
async def test_a_previous_generation_without_a_warm_pod_ends(registry: Registry, end: str) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join(registry, "a")
    await pod.load(SPEC.key)
    await registry.put_models([NEXT])
    if end == "left":
        await pod.leave()
    else:
        await pod.set_tier(Tier.DISK, SPEC.key)
    assert await record(registry) == ModelRecord(NEXT)


async def test_a_pod_that_registers_again_keeps_the_previous_generation(registry: Registry) -> None:
    await registry.put_models([SPEC])
    await (await Pod.join(registry, "a")).load(SPEC.key)
    await registry.put_models([NEXT])
    again = await Pod.join(registry, "a")
    await again.set_tier(Tier.DEVICE, SPEC.key)
    assert await record(registry) == ModelRecord(NEXT, previous=SPEC)


async def test_a_generation_held_by_an_expired_pod_leaves_no_previous(registry: Registry) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join(registry, "a")
    await pod.load(SPEC.key)
    await pod.lapse()
    await registry.put_models([NEXT])
    assert await record(registry) == ModelRecord(NEXT)


async def test_a_failure_of_the_new_generation_is_not_cleared_by_loading_the_old_one(
    registry: Registry,
) -> None:
    await registry.put_models([SPEC])
    pod, other = await Pod.join(registry, "a"), await Pod.join(registry, "b")
    await pod.load(SPEC.key)
    await registry.put_models([NEXT])
    token = await pod.claim_token(NEXT.key)
    await registry.fail_load("a", pod.epoch, NEXT.key, token, failure(NEXT.key))
    await other.load(SPEC.key)
    assert await record(registry) == ModelRecord(NEXT, SPEC, failure(NEXT.key))


@pytest.mark.parametrize("spec", [SPEC, NEXT], ids=["applied-again", "changed"])
async def test_declaring_again_clears_a_failure(registry: Registry, spec: ModelSpec) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join(registry, "a")
    token = await pod.claim_token()
    await registry.fail_load("a", pod.epoch, SPEC.key, token, failure())
    await registry.put_models([spec])
    assert (await record(registry)).failure is None


async def test_finishing_a_load_does_not_restore_a_deleted_model(registry: Registry) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join(registry, "a")
    token = await pod.claim_token()
    await registry.delete_models([SPEC.name])
    await pod.finish(token)
    assert await registry.get_model(SPEC.name) is None
