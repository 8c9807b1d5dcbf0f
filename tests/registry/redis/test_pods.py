import pytest

from registry.domain.model import Tier
from registry.domain.pod import (
    AVERAGE,
    Accelerator,
    PodInfo,
    PodPhase,
    PodReport,
    PodSpeed,
    Samples,
)
from registry.domain.pod_state import LoadMode, Refusal
from registry.errors import ClaimLost, LeaseLost
from registry.redis.client import Registry
from tests.registry.redis.clients import KEY, Pod, eventually, reserve
from tests.registry.redis.conftest import Connect


async def test_a_registered_pod_is_stored_as_given(registry: Registry) -> None:
    info = PodInfo(
        "a", "10.0.0.1:80", node="n1", device="cuda", slots=7, memory_bytes=5, link_bytes_per_s=1e8
    )
    epoch = await registry.register_pod(info)
    pod = (await registry.cluster()).pods["a"]
    assert (pod.info, pod.epoch, pod.phase) == (info, epoch, PodPhase.READY)
    assert (pod.slots_used, pod.ongoing, pod.loads_total) == (0, 0, 0)


async def test_a_heartbeat_stores_the_report(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    samples = (Samples(KEY, "infer", (0.1, 0.3, 0.2)), Samples(KEY, "load:remote", (2.5,)))
    await pod.heartbeat(PodReport({"device": 40, "disk": 90}, samples, loads_total=3))
    state = await registry.cluster()
    assert state.pods["a"].used_bytes == {"device": 40, "disk": 90}
    assert state.pods["a"].free_bytes == 960
    assert state.pods["a"].loads_total == 3
    assert state.measured(KEY).infer.seconds == pytest.approx(0.2)
    assert state.measured(KEY).load_from(Tier.REMOTE, None).seconds == pytest.approx(2.5)


async def test_a_copy_has_the_speed_that_a_pod_reported_last(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    samples = (Samples(KEY, "infer", (0.5,)), Samples(KEY, "load:remote", (2.0,)))
    await pod.heartbeat(PodReport(samples=samples, speed=PodSpeed(1.3, {KEY: 0.7})))
    await pod.heartbeat(PodReport(speed=PodSpeed(3.0, {KEY: 1.5})))
    slow, other = (await registry.cluster()).pods["a"], await Pod.join(registry, "b")
    assert slow.speed == PodSpeed(3.0, {KEY: 1.5})
    assert slow.estimates[KEY].infer.seconds == pytest.approx(1.5)
    assert slow.estimates[KEY].load_from(Tier.REMOTE, None).seconds == pytest.approx(2.0)
    state = await registry.cluster()
    assert state.pods[other.name].speed is AVERAGE
    assert state.pods[other.name].estimates[KEY].infer.seconds == pytest.approx(0.5)
    assert state.measured(KEY).infer.seconds == pytest.approx(0.5)
    await Pod.join(registry, "a")
    assert (await registry.cluster()).pods["a"].speed is AVERAGE, "a new process has not learned it"


async def test_samples_are_kept_by_kind_of_accelerator(registry: Registry) -> None:
    reports = {"a": ("NVIDIA H200", 0.5, 0.1), "b": ("AMD EPYC", 1.0, 1.0), "c": ("", 1.0, 3.0)}
    for name, (product, share, infer_s) in reports.items():
        gpu = Accelerator(product=product)
        info = PodInfo(name, f"127.0.0.1:{len(name)}", "n", accelerator=gpu, share=share)
        epoch = await registry.register_pod(info)
        samples = (Samples(KEY, "infer", (infer_s,)),)
        await registry.heartbeat(name, epoch, PodReport(samples=samples))
    await registry.register_pod(
        PodInfo("d", "127.0.0.1:9", "n", accelerator=Accelerator(product="NVIDIA H200"))
    )
    pods = (await registry.cluster()).pods
    found = {name: pod.estimates[KEY].infer for name, pod in pods.items()}
    assert {name: each.seconds for name, each in found.items()} == {
        "a": 0.1,
        "b": 1.0,
        "c": 3.0,
        "d": 0.1,
    }
    assert [name for name, each in found.items() if not each.is_measured] == ["d"]


async def test_a_pod_has_its_address_until_its_lease_ends(registry: Registry) -> None:
    here, there = "10.0.0.1:80", "[2001:db8::1]:80"
    first = await registry.register_pod(PodInfo("a", here, "n", slots=1))
    assert await registry.has_pod_at(here)
    assert not await registry.has_pod_at(there)
    second = await registry.register_pod(PodInfo("a", there, "n", slots=1))
    assert not await registry.has_pod_at(here)
    assert await registry.has_pod_at(there)
    await registry.deregister_pod("a", first)  # of the process before: no matter
    assert await registry.has_pod_at(there)
    await registry.deregister_pod("a", second)
    assert not await registry.has_pod_at(there)


async def test_an_address_taken_over_belongs_to_the_new_pod(registry: Registry) -> None:
    address = "10.0.0.1:80"
    first = await registry.register_pod(PodInfo("a", address, "n", slots=1))
    second = await registry.register_pod(PodInfo("b", address, "n", slots=1))
    await registry.deregister_pod("a", first)
    assert await registry.has_pod_at(address)
    await Pod(registry, "b", second, 60.0).lapse()
    assert not await registry.has_pod_at(address)


async def test_idle_memory_is_summed_over_all_pods_ever(registry: Registry) -> None:
    assert await registry.idle_byte_s() == 0
    first, second = await Pod.join(registry, "a"), await Pod.join(registry, "b")
    await first.heartbeat(PodReport(idle_byte_s=2.5e12))
    await first.heartbeat(PodReport(idle_byte_s=4e12))
    await second.heartbeat(PodReport(idle_byte_s=1e12))
    await registry.deregister_pod("a", first.epoch)
    assert await registry.idle_byte_s() == 5e12


async def test_idle_memory_of_a_pod_that_registers_again_counts_once(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    await pod.heartbeat(PodReport(idle_byte_s=7e9))
    again = await Pod.join(registry, "a")
    await again.heartbeat(PodReport(idle_byte_s=9e9))
    assert await registry.idle_byte_s() == 9e9


async def test_a_new_process_of_a_pod_counts_idle_memory_from_zero(registry: Registry) -> None:
    await (await Pod.join(registry, "a")).heartbeat(PodReport(idle_byte_s=7e9))
    new = await Pod.join(registry, "a")
    await new.heartbeat(PodReport(idle_byte_s=0.0))
    await new.heartbeat(PodReport(idle_byte_s=1e9))
    assert await registry.idle_byte_s() == 8e9


async def test_an_empty_report_changes_nothing(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    await pod.heartbeat(PodReport(samples=(Samples(KEY, "infer", ()),)))
    assert not (await registry.cluster()).measured(KEY).infer.is_measured


async def test_non_finite_measurements_are_ignored(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    values = (float("nan"), 0.5, float("inf"))
    await pod.heartbeat(PodReport(samples=(Samples(KEY, "infer", values),)))
    assert (await registry.cluster()).measured(KEY).infer.seconds == pytest.approx(0.5)


async def test_only_the_latest_samples_are_kept(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    for start in range(0, 200, 50):
        values = tuple(float(value) for value in range(start, start + 50))
        await pod.heartbeat(PodReport(samples=(Samples(KEY, "infer", values),)))
    assert (await registry.cluster()).measured(KEY).infer.seconds == pytest.approx(183.5)


@pytest.mark.slow
async def test_heartbeats_extend_the_lease(registry: Registry) -> None:
    kept = await Pod.join(registry, "kept", lease_ttl_s=1.0)
    kept.lease_ttl_s = 60.0
    await kept.heartbeat()
    short = await Pod.join(registry, "short", lease_ttl_s=1.0)

    async def only_short_is_gone() -> bool:
        return set((await registry.cluster()).pods) == {"kept"}

    await eventually(only_short_is_gone)
    with pytest.raises(LeaseLost):
        await short.heartbeat()


async def test_all_state_of_a_pod_is_removed_with_its_lease(registry: Registry) -> None:
    pod = await Pod.join_warm(registry, "a")
    await pod.claim("default/other@1")
    await reserve(registry, "a", mode=LoadMode.WARM)
    await pod.lapse()
    state = await registry.cluster()
    assert state.pods == {}
    assert state.residency == {}
    again = await Pod.join(registry, "a")
    assert await reserve(registry, "a", mode=LoadMode.WARM) is Refusal.COLD
    assert await again.claim("default/other@1") is not None


async def test_copies_of_an_expired_pod_do_not_count_without_a_sync(registry: Registry) -> None:
    gone = await Pod.join_warm(registry, "a")
    other = await Pod.join(registry, "b")
    await gone.lapse()
    reserved = await reserve(registry, "b", mode=LoadMode.LOAD, max_other_copies=0)
    assert not isinstance(reserved, Refusal)
    assert other.name == "b"


async def test_registering_again_removes_the_state_of_the_older_process(registry: Registry) -> None:
    old = await Pod.join_warm(registry, "a")
    await reserve(registry, "a")
    new = await Pod.join(registry, "a")
    state = await registry.cluster()
    assert state.pods["a"].epoch == new.epoch > old.epoch
    assert state.pods["a"].slots_used == 0
    assert state.holders(KEY) == {}


async def test_an_older_process_of_the_same_name_is_fenced(registry: Registry) -> None:
    old = await Pod.join(registry, "a")
    token = await old.claim_token()
    await Pod.join(registry, "a")
    for attempt in (
        old.heartbeat(),
        old.start(token),
        old.finish(token),
        old.set_tier(Tier.DEVICE),
    ):
        with pytest.raises(LeaseLost):
            await attempt
    with pytest.raises(LeaseLost):
        await old.claim()
    with pytest.raises(LeaseLost):
        await registry.set_phase("a", old.epoch, PodPhase.DRAINING)
    await old.leave()
    state = await registry.cluster()
    assert set(state.pods) == {"a"}
    assert state.holders(KEY) == {}


async def test_a_stalled_pod_writes_nothing_after_its_lease(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    token = await pod.claim_token()
    await pod.start(token)
    await pod.lapse()
    with pytest.raises((LeaseLost, ClaimLost)):
        await pod.finish(token)
    with pytest.raises(LeaseLost):
        await pod.set_tier(Tier.DEVICE)
    state = await registry.cluster()
    assert state.pods == {}
    assert state.residency == {}


async def test_deregistering_takes_effect_at_once(registry: Registry, connect: Connect) -> None:
    pod = await Pod.join_warm(registry, "a")
    await pod.leave()
    other = await connect()
    assert await reserve(other, "a") is Refusal.GONE
    assert (await other.cluster()).residency == {}


async def test_a_draining_pod_takes_no_requests(registry: Registry) -> None:
    pod = await Pod.join_warm(registry, "a")
    await Pod.join(registry, "b")
    await registry.set_phase("a", pod.epoch, PodPhase.DRAINING)
    assert await reserve(registry, "a") is Refusal.GONE
    assert await reserve(registry, "b", "a") is Refusal.GONE
    assert (await registry.cluster()).pods["a"].phase is PodPhase.DRAINING


async def test_an_emptied_redis_repeats_no_epoch(
    registry: Registry, connect: Connect, pool: str
) -> None:
    import redis

    before = await Pod.join(registry, "a")
    with redis.Redis.from_url(registry.url) as direct:
        direct.delete(*direct.keys(f"*{{{pool}}}*"))
    after = await Pod.join(await connect(), "a")
    assert after.epoch > before.epoch
