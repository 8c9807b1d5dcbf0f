import asyncio

import pytest
import redis

from registry.domain.model import Tier
from registry.domain.pod import PodPhase
from registry.domain.pod_state import Granted, LoadMode, Refusal
from registry.redis.client import Registry
from tests.registry.redis.clients import KEY, Pod, counts, eventually, release, reserve, terms
from tests.registry.redis.conftest import Connect
from tests.servers import RedisServer


async def test_a_reservation_takes_a_slot_and_an_inference_place(registry: Registry) -> None:
    await Pod.join(registry, "a", slots=2)
    await Pod.join_warm(registry, "b")
    assert await reserve(registry, "a", "b") == Granted(start="warm", load_token=0)
    assert await counts(registry, "a") == (1, 0)
    assert await counts(registry, "b") == (0, 1)


async def test_a_full_pod_refuses(registry: Registry) -> None:
    await Pod.join_warm(registry, "a", slots=2)
    for expected in (Granted, Granted, Refusal):
        assert isinstance(await reserve(registry, "a"), expected)
    assert await reserve(registry, "a") is Refusal.FULL
    assert await counts(registry, "a") == (2, 2)


async def test_a_step_takes_an_inference_place_and_no_slot(registry: Registry) -> None:
    await Pod.join_warm(registry, "a", slots=1)
    assert isinstance(await reserve(registry, "a", id_="step", takes_slot=False), Granted)
    assert await counts(registry, "a") == (0, 1)
    assert isinstance(await reserve(registry, "a", id_="request"), Granted)
    assert isinstance(await reserve(registry, "a", id_="other", takes_slot=False), Granted)
    assert await counts(registry, "a") == (1, 3)
    for id_ in ("step", "request", "other"):
        await release(registry, id_, "a")
    assert await counts(registry, "a") == (0, 0)


async def test_a_pod_without_slots_refuses(registry: Registry) -> None:
    await Pod.join(registry, "a", slots=0)
    assert await reserve(registry, "a", mode=LoadMode.LOAD) is Refusal.FULL


async def test_a_busy_predict_pod_refuses_and_takes_no_slot(registry: Registry) -> None:
    await Pod.join(registry, "a", slots=5)
    await Pod.join_warm(registry, "b")
    assert isinstance(await reserve(registry, "a", "b", target_ongoing=1), Granted)
    assert await reserve(registry, "a", "b", target_ongoing=1) is Refusal.BUSY
    assert isinstance(await reserve(registry, "a", "b", target_ongoing=2), Granted)
    assert isinstance(await reserve(registry, "a", "b", target_ongoing=0), Granted)
    assert await counts(registry, "a") == (3, 0)


@pytest.mark.parametrize("mode", [LoadMode.WARM, LoadMode.JOIN])
async def test_a_cold_pod_refuses_and_takes_no_slot(registry: Registry, mode: LoadMode) -> None:
    await Pod.join(registry, "a")
    assert await reserve(registry, "a", mode=mode) is Refusal.COLD
    assert await counts(registry, "a") == (0, 0)


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK, Tier.REMOTE])
async def test_a_load_is_claimed_from_the_tier_the_model_is_on(
    registry: Registry, tier: Tier
) -> None:
    pod = await Pod.join(registry, "a", slots=4)
    await pod.set_tier(tier)
    granted = await reserve(registry, "a", mode=LoadMode.LOAD)
    assert isinstance(granted, Granted)
    assert granted.start == tier
    assert granted.load_token > 0
    assert await reserve(registry, "a", mode=LoadMode.LOAD) == Granted(start=tier, load_token=0)
    assert await reserve(registry, "a", mode=LoadMode.JOIN) == Granted(start=tier, load_token=0)
    assert await reserve(registry, "a", mode=LoadMode.WARM) is Refusal.COLD
    await pod.start(granted.load_token, source=tier)
    await pod.finish(granted.load_token)


@pytest.mark.parametrize("entry", ["gone", "a"])
async def test_a_removed_pod_refuses(registry: Registry, entry: str) -> None:
    await Pod.join(registry, "a")
    assert await reserve(registry, entry, "gone", mode=LoadMode.LOAD) is Refusal.GONE
    assert await counts(registry, "a") == (0, 0)


@pytest.mark.parametrize("is_warm", [False, True])
async def test_no_load_beside_more_copies_than_allowed(registry: Registry, is_warm: bool) -> None:
    first = await Pod.join(registry, "a")
    await Pod.join(registry, "b", slots=5)
    token = await first.claim_token()
    if is_warm:
        await first.finish(token)
    for allowed, outcome in ((0, Refusal), (1, Granted)):
        result = await reserve(registry, "b", mode=LoadMode.LOAD, max_other_copies=allowed)
        assert isinstance(result, outcome)
    assert await counts(registry, "b") == (1, 1)


async def test_a_copy_at_a_draining_pod_does_not_count(registry: Registry) -> None:
    first = await Pod.join(registry, "a")
    await Pod.join(registry, "b")
    await first.load()
    await registry.set_phase("a", first.epoch, PodPhase.DRAINING)
    granted = await reserve(registry, "b", mode=LoadMode.LOAD, max_other_copies=0)
    assert isinstance(granted, Granted)


async def test_gateways_with_the_same_state_load_once(connect: Connect) -> None:
    gateways = [await connect() for _ in range(4)]
    for index in range(4):
        await Pod.join(gateways[0], f"pod-{index}", slots=4)
    results = await asyncio.gather(
        *(
            reserve(gateway, f"pod-{index}", mode=LoadMode.LOAD, max_other_copies=0)
            for index, gateway in enumerate(gateways)
        )
    )
    assert sum(isinstance(result, Granted) for result in results) == 1
    assert sum(result is Refusal.ELSEWHERE for result in results) == 3


async def test_reservations_of_a_dead_gateway_expire(registry: Registry) -> None:
    await Pod.join_warm(registry, "a")
    assert isinstance(await reserve(registry, "a", id_="x"), Granted)
    assert await reserve(registry, "a") is Refusal.FULL
    registry.renew("x", terms("a", ttl_s=0.05))

    async def is_free_again() -> bool:
        return isinstance(await reserve(registry, "a"), Granted)

    await eventually(is_free_again)


async def test_release_frees_both_and_may_be_repeated(registry: Registry) -> None:
    await Pod.join(registry, "a")
    await Pod.join_warm(registry, "b")
    await reserve(registry, "a", "b", id_="x")
    for _ in range(2):
        await release(registry, "x", "a", "b")
        assert await counts(registry, "a") == (0, 0)
        assert await counts(registry, "b") == (0, 0)


async def test_release_at_a_removed_pod_has_no_effect(registry: Registry) -> None:
    pod = await Pod.join_warm(registry, "a")
    await reserve(registry, "a", id_="x")
    await pod.leave()
    await release(registry, "x", "a")
    assert (await registry.cluster()).pods == {}


async def test_the_end_of_inference_frees_the_place_but_not_the_slot(registry: Registry) -> None:
    await Pod.join_warm(registry, "a")
    await reserve(registry, "a", id_="x")
    await registry.end_inference("a", "x")
    assert await counts(registry, "a") == (1, 0)


async def test_restore_enters_a_reservation_again(registry: Registry) -> None:
    await Pod.join_warm(registry, "a")
    assert isinstance(await reserve(registry, "a", id_="long"), Granted)
    await Pod.join_warm(registry, "a")
    assert await counts(registry, "a") == (0, 0)
    for _ in range(2):
        registry.restore("long", terms("a"))
    assert await reserve(registry, "a") is Refusal.FULL
    assert await counts(registry, "a") == (1, 1)
    await release(registry, "long", "a")
    assert isinstance(await reserve(registry, "a"), Granted)


async def test_restore_leaves_an_existing_reservation_unchanged(registry: Registry) -> None:
    await Pod.join_warm(registry, "a")
    await reserve(registry, "a", id_="x")
    await registry.end_inference("a", "x")
    registry.restore("x", terms("a"))
    assert await counts(registry, "a") == (1, 0)


async def test_restore_at_a_removed_pod_has_no_effect(registry: Registry) -> None:
    registry.restore("long", terms("a"))
    await Pod.join_warm(registry, "a")
    assert await counts(registry, "a") == (0, 0)


@pytest.mark.slow
async def test_renewal_extends_a_reservation(registry: Registry) -> None:
    await Pod.join_warm(registry, "a", slots=2)
    await reserve(registry, "a", id_="kept", ttl_s=1.0)
    registry.renew("kept", terms("a"))
    await reserve(registry, "a", id_="dropped", ttl_s=1.0)

    async def one_is_left() -> bool:
        return await counts(registry, "a") == (1, 1)

    await eventually(one_is_left)
    assert isinstance(await reserve(registry, "a"), Granted)
    assert await reserve(registry, "a") is Refusal.FULL


async def test_renewal_does_not_restore_a_released_reservation(registry: Registry) -> None:
    await Pod.join_warm(registry, "a")
    await reserve(registry, "a", id_="x")
    await release(registry, "x", "a")
    registry.renew("x", terms("a"))
    assert await counts(registry, "a") == (0, 0)


async def test_concurrent_reservations_never_exceed_the_slots(connect: Connect) -> None:
    gateways = [await connect() for _ in range(3)]
    await Pod.join_warm(gateways[0], "a", slots=5)
    results = await asyncio.gather(*(reserve(gateways[n % 3], "a") for n in range(60)))
    assert sum(isinstance(result, Granted) for result in results) == 5
    assert await counts(gateways[0], "a") == (5, 5)


async def test_what_comes_in_one_turn_is_one_run_of_the_script(
    registry: Registry, server: RedisServer
) -> None:
    for name, slots in (("a", 3), ("b", 9)):
        await Pod.join_warm(registry, name, slots=slots)
    for id_ in ("x", "y", "z"):
        await reserve(registry, "a", id_=id_)
    with redis.Redis.from_url(server.url) as direct:
        before = direct.info("commandstats")["cmdstat_evalsha"]["calls"]
        wanted = [reserve(registry, pod) for pod in "abaabbaa"]
        released = [release(registry, id_, "a") for id_ in ("x", "z")]  # the slots are free before
        results, _ = await asyncio.gather(asyncio.gather(*wanted), asyncio.gather(*released))
        assert direct.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1
    assert [result is not Refusal.FULL for result in results] == [
        True,
        True,
        True,
        False,
        True,
        True,
        False,
        False,
    ]
    assert await counts(registry, "a") == (3, 3)
    assert await counts(registry, "b") == (3, 3)


@pytest.mark.parametrize("target_ongoing", [0, 2])
async def test_requests_of_one_turn_claim_one_load(registry: Registry, target_ongoing: int) -> None:
    await Pod.join(registry, "a", slots=3)
    asked = [
        reserve(registry, "a", mode=LoadMode.LOAD, target_ongoing=target_ongoing) for _ in range(4)
    ]
    *granted, refused = await asyncio.gather(*asked)
    assert refused is (Refusal.BUSY if target_ongoing else Refusal.FULL)
    tokens = [result.load_token for result in granted if isinstance(result, Granted)]
    assert len(tokens) == (target_ongoing or 3)
    assert [token > 0 for token in tokens] == [True] + [False] * (len(tokens) - 1)


async def test_a_failed_operation_does_not_affect_its_batch(registry: Registry) -> None:
    from registry.errors import RegistryRefused

    await Pod.join_warm(registry, "a")
    good = registry.transactions.submit("infer_end", "x", "a")
    bad = registry.transactions.submit("no such operation")
    reserved = asyncio.ensure_future(reserve(registry, "a", key=KEY))
    assert await good is True
    with pytest.raises(RegistryRefused):
        await bad
    assert isinstance(await reserved, Granted)
