"""Profiles of models, and failures of warm models."""

import dataclasses

import pytest

from registry.domain.model import LoadFailure
from registry.domain.pod import Profile, ProfilePoint
from registry.errors import LeaseLost
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from tests.registry.redis.clients import KEY, SPEC, Pod, record_of, running, until
from tests.registry.redis.conftest import Connect

PROFILE = Profile(KEY, "cpu", (ProfilePoint(1, 0.1, 5), ProfilePoint(2, 0.15)), "size")
NEXT = dataclasses.replace(SPEC, storage_uri="s3://models/two")
BROKEN = LoadFailure(KEY, "RuntimeUnhealthy", "inference timed out", attempts=1, retry_at_s=2e9)


async def test_a_profile_is_stored_and_replaced(registry: Registry) -> None:
    await registry.put_models([SPEC])
    assert (await registry.cluster()).profiles_of(KEY) == []
    assert await registry.put_profile(PROFILE)
    assert (await registry.cluster()).profiles_of(KEY) == [PROFILE]
    other = dataclasses.replace(PROFILE, points=(ProfilePoint(4, 0.2),))
    assert await registry.put_profile(other)
    assert (await registry.cluster()).profiles_of(KEY) == [other]


async def test_every_product_has_a_profile_of_its_own(registry: Registry) -> None:
    await registry.put_models([SPEC])
    gpu = dataclasses.replace(PROFILE, product="NVIDIA H200", source="imported")
    assert await registry.put_profile(PROFILE)
    assert await registry.put_profile(gpu)
    assert (await registry.cluster()).profiles_of(KEY) == [gpu, PROFILE]
    await registry.delete_models([SPEC.name])
    await registry.put_models([SPEC])
    assert (await registry.cluster()).profiles_of(KEY) == []


async def test_profiles_are_published(registry: Registry, connect: Connect) -> None:
    await registry.put_models([SPEC])
    watch = ClusterWatch(await connect(), counts=False)
    async with running(watch):
        await registry.put_profile(PROFILE)
        await until(lambda: watch.state.profiles_of(KEY) == [PROFILE])
        await registry.delete_models([SPEC.name])
        await until(lambda: not watch.state.profiles_of(KEY))


async def test_a_profile_belongs_to_its_generation(registry: Registry) -> None:
    await registry.put_models([SPEC])
    await registry.put_profile(PROFILE)
    await registry.put_models([NEXT])
    assert (await registry.cluster()).profiles_of(NEXT.key) == []
    assert not await registry.put_profile(PROFILE)
    assert await registry.put_profile(dataclasses.replace(PROFILE, key=NEXT.key))


async def test_the_previous_generation_can_be_profiled_while_it_serves(registry: Registry) -> None:
    await registry.put_models([SPEC])
    await (await Pod.join(registry, "a")).load(SPEC.key)
    await registry.put_models([NEXT])
    assert await registry.put_profile(PROFILE)


async def test_a_profile_is_deleted_with_its_model(registry: Registry) -> None:
    await registry.put_models([SPEC])
    await registry.put_profile(PROFILE)
    await registry.delete_models([SPEC.name])
    await registry.put_models([SPEC])
    assert (await registry.cluster()).profiles_of(KEY) == []


async def test_a_model_failure_is_recorded(registry: Registry) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join_warm(registry, "a")
    await registry.report_model_failure("a", pod.epoch, BROKEN)
    assert (await record_of(registry)).failure == BROKEN


async def test_what_cannot_be_read_is_kept_until_a_load_or_another_declaration(
    registry: Registry,
) -> None:
    await registry.put_models([SPEC])
    await registry.report_unreadable(BROKEN)
    assert (await record_of(registry)).failure == BROKEN
    await (await Pod.join(registry, "a")).load(SPEC.key)
    assert (await record_of(registry)).failure is None
    await registry.report_unreadable(BROKEN)  # a pod has read it since
    assert (await record_of(registry)).failure is None
    await registry.put_models([NEXT])
    await registry.report_unreadable(BROKEN)  # of the generation before
    assert (await record_of(registry)).failure is None


async def test_a_failure_of_a_replaced_generation_is_not_recorded(registry: Registry) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join(registry, "a")
    await registry.put_models([NEXT])
    await registry.report_model_failure("a", pod.epoch, BROKEN)
    assert (await record_of(registry)).failure is None


async def test_a_pod_without_a_lease_cannot_report_a_failure(registry: Registry) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join(registry, "a")
    await pod.leave()
    with pytest.raises(LeaseLost):
        await registry.report_model_failure("a", pod.epoch, BROKEN)
