import asyncio

import pytest

from registry.domain.model import Tier
from registry.domain.pod import PodPhase
from registry.domain.pod_state import ANY_COPIES, Granted, LoadMode, Refusal
from registry.errors import ClaimLost, LeaseLost
from registry.redis.client import Registry
from tests.registry.redis.clients import KEY, SPEC, Pod, eventually, failure, record_of, reserve
from tests.registry.redis.conftest import Connect


async def place(registry: Registry, pod: str, key: str = KEY) -> tuple[Tier, Tier | None] | None:
    residency = (await registry.cluster()).holders(key).get(pod)
    return None if residency is None else (residency.tier, residency.loading_from)


async def test_a_load_goes_from_claim_to_warm(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    token = await pod.claim_token()
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
    pod = await Pod.join_warm(registry, "a")
    assert await pod.claim() is None


@pytest.mark.parametrize("is_finished", [False, True])
async def test_a_claim_for_the_pool_counts_all_pods(registry: Registry, is_finished: bool) -> None:
    first, second = await Pod.join(registry, "a"), await Pod.join(registry, "b")
    token = await first.claim(max_other_copies=0)
    assert token is not None
    if is_finished:
        await first.finish(token)
    assert await second.claim(max_other_copies=0) is None
    assert await second.claim(max_other_copies=ANY_COPIES) is not None


async def test_many_claims_for_the_pool_at_once_give_one_token(connect: Connect) -> None:
    pods = [await Pod.join(await connect(), f"pod-{index}") for index in range(6)]
    tokens = await asyncio.gather(*(pod.claim(max_other_copies=0) for pod in pods))
    assert sum(token is not None for token in tokens) == 1


async def test_draining_pods_do_not_count_as_copies(registry: Registry) -> None:
    first, second = await Pod.join(registry, "a"), await Pod.join(registry, "b")
    await first.load()
    await registry.set_phase("a", first.epoch, PodPhase.DRAINING)
    assert await second.claim(max_other_copies=0) is not None


async def test_an_unstarted_claim_expires(registry: Registry) -> None:
    first, second = await Pod.join(registry, "a"), await Pod.join(registry, "b")
    await first.set_tier(Tier.DISK)
    token = await first.claim_token(ttl_s=0.1)

    async def second_may() -> bool:
        return await second.claim(max_other_copies=0) is not None

    await eventually(second_may)
    with pytest.raises(ClaimLost):
        await first.start(token)
    with pytest.raises(ClaimLost):
        await first.finish(token)
    assert await place(registry, "a") == (Tier.DISK, None)


async def test_a_claim_expires_without_a_sync(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    token = await pod.claim_token(ttl_s=0)
    with pytest.raises(ClaimLost):
        await pod.start(token)
    taken = await reserve(registry, "a", mode=LoadMode.LOAD)
    assert isinstance(taken, Granted)
    assert taken.load_token > token


@pytest.mark.slow
async def test_a_started_load_outlives_the_ttl_of_its_claim(registry: Registry) -> None:
    first, second = await Pod.join(registry, "a"), await Pod.join(registry, "b")
    token = await first.claim_token(ttl_s=1.0)
    await first.start(token)
    await second.claim("default/timer@1", ttl_s=1.0)

    async def timer_is_over() -> bool:
        return await place(registry, "b", "default/timer@1") is None

    await eventually(timer_is_over)
    assert await second.claim(max_other_copies=0) is None
    await first.finish(token)
    assert await place(registry, "a") == (Tier.DEVICE, None)


async def test_a_fenced_token_cannot_finish_a_load(registry: Registry) -> None:
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


async def test_a_pod_without_a_lease_cannot_claim(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    await pod.leave()
    with pytest.raises(LeaseLost):
        await pod.claim()


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
async def test_eviction_leaves_the_model_on_a_lower_tier(registry: Registry, tier: Tier) -> None:
    pod = await Pod.join_warm(registry, "a")
    await pod.set_tier(tier)
    assert await place(registry, "a") == (tier, None)
    assert await reserve(registry, "a", mode=LoadMode.WARM) is Refusal.COLD
    await pod.claim_token()
    assert await place(registry, "a") == (tier, tier)


async def test_tier_remote_without_bytes_removes_the_residency(registry: Registry) -> None:
    pod = await Pod.join_warm(registry, "a")
    await pod.set_tier(Tier.REMOTE, bytes_=0)
    assert (await registry.cluster()).residency == {}


async def test_tier_remote_with_bytes_is_no_load(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    await pod.set_tier(Tier.REMOTE, bytes_=10)
    assert await place(registry, "a") == (Tier.REMOTE, None)
    assert await reserve(registry, "a", mode=LoadMode.JOIN) is Refusal.COLD
    await pod.claim_token()
    assert await place(registry, "a") == (Tier.REMOTE, Tier.REMOTE)


async def test_set_tier_keeps_a_claim_made_meanwhile(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    await pod.set_tier(Tier.HOST)
    granted = await reserve(registry, "a", mode=LoadMode.LOAD)
    assert isinstance(granted, Granted)
    await pod.set_tier(Tier.DISK)
    assert await place(registry, "a") == (Tier.DISK, Tier.DISK)
    await pod.start(granted.load_token, source=Tier.DISK)
    await pod.finish(granted.load_token)
    assert await place(registry, "a") == (Tier.DEVICE, None)


async def test_set_tier_ends_a_started_load(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    token = await pod.claim_token()
    await pod.start(token)
    await pod.set_tier(Tier.DISK)
    assert await place(registry, "a") == (Tier.DISK, None)
    with pytest.raises(ClaimLost):
        await pod.finish(token)


async def test_a_failure_is_recorded_until_the_next_successful_load(registry: Registry) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join(registry, "a")
    token = await pod.claim_token()
    await registry.fail_load("a", pod.epoch, KEY, token, failure())
    assert (await record_of(registry)).failure == failure()
    assert await place(registry, "a") is None
    await pod.load()
    assert (await record_of(registry)).failure is None


async def test_a_failure_with_a_fenced_token_is_not_recorded(registry: Registry) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join(registry, "a")
    stale = await pod.claim_token(ttl_s=0)
    await pod.load()
    with pytest.raises(ClaimLost):
        await registry.fail_load("a", pod.epoch, KEY, stale, failure())
    assert (await record_of(registry)).failure is None
    assert await place(registry, "a") == (Tier.DEVICE, None)
