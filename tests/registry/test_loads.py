from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from registry.domain.model import LoadFailure, Tier
from registry.domain.pod import PodPhase
from registry.domain.reservation import ClaimScope, Granted, LoadMode, Refusal
from registry.errors import ClaimLost, LeaseLost
from tests.registry.actors import KEY, SPEC, Pod, eventually, reserve

if TYPE_CHECKING:
    from registry.redis.client import Registry
    from tests.registry.conftest import Connect

pytestmark = pytest.mark.anyio


async def place(registry: Registry, pod: str, key: str = KEY) -> tuple[Tier, Tier | None] | None:
    residency = (await registry.cluster()).holders(key).get(pod)
    return None if residency is None else (residency.tier, residency.loading_from)


async def test_a_load_goes_from_claim_to_warm(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    token = await pod.claim()
    assert token is not None
    assert await place(registry, "a") == (Tier.REMOTE, Tier.REMOTE)
    await pod.start(token, source=Tier.DISK)
    assert await place(registry, "a") == (Tier.DISK, Tier.DISK)
    await pod.finish(token)
    assert await place(registry, "a") == (Tier.DEVICE, None)
    assert (await registry.cluster()).holders(KEY)["a"].size_bytes == 10


async def test_one_model_is_claimed_once_per_pod(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    assert await pod.claim() is not None
    assert await pod.claim() is None
    assert await pod.claim("default/other@1") is not None


async def test_a_warm_model_is_not_claimed(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    await pod.load()
    assert await pod.claim() is None


@pytest.mark.parametrize("is_finished", [False, True])
async def test_a_claim_for_the_pool_counts_all_pods(registry: Registry, is_finished: bool) -> None:
    first, second = await Pod.join(registry, "a"), await Pod.join(registry, "b")
    token = await first.claim(scope=ClaimScope.POOL)
    assert token is not None
    if is_finished:
        await first.finish(token)
    assert await second.claim(scope=ClaimScope.POOL) is None
    assert await second.claim(scope=ClaimScope.POD) is not None


async def test_many_claims_for_the_pool_at_once_give_one_token(connect: Connect) -> None:
    pods = [await Pod.join(await connect(), f"pod-{index}") for index in range(6)]
    tokens = await asyncio.gather(*(pod.claim(scope=ClaimScope.POOL) for pod in pods))
    assert sum(token is not None for token in tokens) == 1


async def test_draining_pods_do_not_count_as_copies(registry: Registry) -> None:
    first, second = await Pod.join(registry, "a"), await Pod.join(registry, "b")
    await first.load()
    await registry.set_phase("a", first.epoch, PodPhase.DRAINING)
    assert await second.claim(scope=ClaimScope.POOL) is not None


async def test_an_unstarted_claim_is_taken_back(registry: Registry) -> None:
    first, second = await Pod.join(registry, "a"), await Pod.join(registry, "b")
    await first.set_tier(Tier.DISK)
    token = await first.claim(ttl_s=0.1)
    assert token is not None

    async def second_may() -> bool:
        return await second.claim(scope=ClaimScope.POOL) is not None

    await eventually(second_may)
    with pytest.raises(ClaimLost):
        await first.start(token)
    with pytest.raises(ClaimLost):
        await first.finish(token)
    assert await place(registry, "a") == (Tier.DISK, None)


async def test_a_claim_is_over_before_anybody_swept_it(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    token = await pod.claim(ttl_s=0)
    assert token is not None
    with pytest.raises(ClaimLost):
        await pod.start(token)
    taken = await reserve(registry, "a", mode=LoadMode.LOAD)
    assert isinstance(taken, Granted)
    assert taken.load_token > token


async def test_a_started_load_outlives_the_time_of_its_claim(registry: Registry) -> None:
    first, second = await Pod.join(registry, "a"), await Pod.join(registry, "b")
    token = await first.claim(ttl_s=1.0)
    assert token is not None
    await first.start(token)
    await second.claim("default/timer@1", ttl_s=1.0)

    async def timer_is_over() -> bool:
        return await place(registry, "b", "default/timer@1") is None

    await eventually(timer_is_over)
    assert await second.claim(scope=ClaimScope.POOL) is None
    await first.finish(token)
    assert await place(registry, "a") == (Tier.DEVICE, None)


async def test_a_fenced_off_token_never_becomes_warm(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    stale = await pod.claim(ttl_s=0)
    fresh = await pod.claim()
    assert stale is not None
    assert fresh is not None
    assert fresh > stale
    with pytest.raises(ClaimLost):
        await pod.finish(stale)
    assert await place(registry, "a") == (Tier.REMOTE, Tier.REMOTE)
    await pod.finish(fresh)
    with pytest.raises(ClaimLost):
        await pod.finish(fresh)


async def test_without_a_lease_there_is_no_claim(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    await pod.leave()
    with pytest.raises(LeaseLost):
        await pod.claim()


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
async def test_eviction_leaves_the_model_on_a_lower_tier(registry: Registry, tier: Tier) -> None:
    pod = await Pod.join(registry, "a")
    await pod.load()
    await pod.set_tier(tier)
    assert await place(registry, "a") == (tier, None)
    assert await reserve(registry, "a", mode=LoadMode.WARM) is Refusal.COLD
    token = await pod.claim()
    assert token is not None
    assert await place(registry, "a") == (tier, tier)


async def test_remote_without_bytes_means_that_nothing_is_left(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    await pod.load()
    await pod.set_tier(Tier.REMOTE, bytes_=0)
    assert (await registry.cluster()).residency == {}


async def test_remote_with_bytes_means_that_small_files_are_there(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    await pod.set_tier(Tier.REMOTE, bytes_=10)
    assert await place(registry, "a") == (Tier.REMOTE, None)
    assert await reserve(registry, "a", mode=LoadMode.JOIN) is Refusal.COLD
    token = await pod.claim()
    assert token is not None
    assert await place(registry, "a") == (Tier.REMOTE, Tier.REMOTE)


async def test_saying_a_tier_does_not_undo_a_claim_made_meanwhile(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    await pod.set_tier(Tier.HOST)
    granted = await reserve(registry, "a", mode=LoadMode.LOAD)
    assert isinstance(granted, Granted)
    await pod.set_tier(Tier.DISK)
    assert await place(registry, "a") == (Tier.DISK, Tier.DISK)
    await pod.start(granted.load_token, source=Tier.DISK)
    await pod.finish(granted.load_token)
    assert await place(registry, "a") == (Tier.DEVICE, None)


async def test_saying_a_tier_ends_a_load_whose_end_was_not_heard(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    token = await pod.claim()
    assert token is not None
    await pod.start(token)
    await pod.set_tier(Tier.DISK)
    assert await place(registry, "a") == (Tier.DISK, None)
    with pytest.raises(ClaimLost):
        await pod.finish(token)


def failure(key: str = KEY) -> LoadFailure:
    return LoadFailure(key, "ModelLoadFailed", "no such bucket", attempts=1, retry_at_s=1.5)


async def test_a_failed_load_shows_in_the_record_and_the_next_good_one_clears_it(
    registry: Registry,
) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join(registry, "a")
    token = await pod.claim()
    assert token is not None
    await registry.fail_load("a", pod.epoch, KEY, token, failure())
    record = await registry.get_model(SPEC.name)
    assert record is not None
    assert record.failure == failure()
    assert await place(registry, "a") is None
    await pod.load()
    record = await registry.get_model(SPEC.name)
    assert record is not None
    assert record.failure is None


async def test_a_fenced_off_failure_is_not_recorded(registry: Registry) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join(registry, "a")
    stale = await pod.claim(ttl_s=0)
    assert stale is not None
    await pod.load()
    with pytest.raises(ClaimLost):
        await registry.fail_load("a", pod.epoch, KEY, stale, failure())
    record = await registry.get_model(SPEC.name)
    assert record is not None
    assert record.failure is None
    assert await place(registry, "a") == (Tier.DEVICE, None)
