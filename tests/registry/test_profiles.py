"""Profiles in the registry, and models that broke: who may say so, and for how long it counts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from registry.domain.model import LoadFailure
from registry.domain.profile import Profile, ProfilePoint
from registry.errors import LeaseLost
from registry.redis.watch import ClusterWatch
from tests.registry.actors import KEY, SPEC, Pod, until
from tests.registry.test_watch import running

if TYPE_CHECKING:
    from registry.redis.client import Registry
    from tests.registry.conftest import Connect

pytestmark = pytest.mark.anyio

PROFILE = Profile(KEY, "cpu", (ProfilePoint(1, 0.1, 5), ProfilePoint(2, 0.15)), "size")
NEXT = dataclasses.replace(SPEC, storage_uri="s3://models/two")
BROKEN = LoadFailure(KEY, "RuntimeUnhealthy", "it hangs", attempts=1, retry_at_s=2e9)


async def test_a_profile_is_kept_and_replaced(registry: Registry) -> None:
    await registry.put_models([SPEC])
    assert (await registry.cluster()).profile(KEY) is None
    assert await registry.put_profile(PROFILE)
    assert (await registry.cluster()).profile(KEY) == PROFILE
    other = dataclasses.replace(PROFILE, points=(ProfilePoint(4, 0.2),))
    assert await registry.put_profile(other)
    assert (await registry.cluster()).profile(KEY) == other


async def test_a_watching_copy_hears_of_profiles(registry: Registry, connect: Connect) -> None:
    await registry.put_models([SPEC])
    watch = ClusterWatch(await connect(), counts=False)
    async with running(watch):
        await registry.put_profile(PROFILE)
        await until(lambda: watch.state.profile(KEY) == PROFILE)
        await registry.delete_models([SPEC.name])
        await until(lambda: watch.state.profile(KEY) is None)


async def test_a_profile_belongs_to_its_generation(registry: Registry) -> None:
    await registry.put_models([SPEC])
    await registry.put_profile(PROFILE)
    await registry.put_models([NEXT])
    assert (await registry.cluster()).profile(NEXT.key) is None
    assert not await registry.put_profile(PROFILE)
    assert await registry.put_profile(dataclasses.replace(PROFILE, key=NEXT.key))


async def test_the_previous_generation_is_profiled_while_it_serves(registry: Registry) -> None:
    await registry.put_models([SPEC])
    await (await Pod.join(registry, "a")).load(SPEC.key)
    await registry.put_models([NEXT])
    assert await registry.put_profile(PROFILE)


async def test_a_profile_goes_with_its_model(registry: Registry) -> None:
    await registry.put_models([SPEC])
    await registry.put_profile(PROFILE)
    await registry.delete_models([SPEC.name])
    await registry.put_models([SPEC])
    assert (await registry.cluster()).profile(KEY) is None


async def test_a_broken_models_record_says_why(registry: Registry) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join(registry, "a")
    await pod.load()
    await registry.report_model_failure("a", pod.epoch, BROKEN)
    record = await registry.get_model(SPEC.name)
    assert record is not None
    assert record.failure == BROKEN


async def test_a_replaced_generation_says_nothing_of_the_new_one(registry: Registry) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join(registry, "a")
    await registry.put_models([NEXT])
    await registry.report_model_failure("a", pod.epoch, BROKEN)
    record = await registry.get_model(SPEC.name)
    assert record is not None
    assert record.failure is None


async def test_a_pod_without_a_lease_reports_nothing(registry: Registry) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join(registry, "a")
    await pod.leave()
    with pytest.raises(LeaseLost):
        await registry.report_model_failure("a", pod.epoch, BROKEN)
