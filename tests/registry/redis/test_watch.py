import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import pytest
import redis

from registry.domain.model import Tier
from registry.domain.pod import PodReport, Samples
from registry.domain.pod_state import Granted, Refusal
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from tests.registry.redis.clients import (
    KEY,
    SPEC,
    Pod,
    agrees,
    eventually,
    release,
    reserve,
    running,
    terms,
    until,
)
from tests.registry.redis.conftest import Connect
from tests.servers import RedisServer

Watching = Callable[..., Awaitable[ClusterWatch]]


@pytest.fixture
async def watching(connect: Connect) -> AsyncIterator[Watching]:
    """A factory of running watches, each with its own client."""
    async with AsyncExitStack() as stack:

        async def make(registry: Registry | None = None, *, counts: bool = True) -> ClusterWatch:
            watch = ClusterWatch(registry or await connect(), counts=counts)
            return await stack.enter_async_context(running(watch))

        yield make


async def test_a_machine_whose_clock_is_set_keeps_the_registrys_time(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = ClusterWatch(registry)
    now_s, clock_s = watch.registry_now_s(), time.time()
    assert now_s == pytest.approx(clock_s, abs=60.0)
    monkeypatch.setattr(time, "time", lambda: clock_s + 3600.0)
    assert watch.registry_now_s() == pytest.approx(now_s, abs=60.0)


def watch_repaired(watch: ClusterWatch, times: int) -> bool:
    return watch.repairs_total >= times


@pytest.mark.usefixtures("without_syncs")
async def test_the_copy_follows_another_client(watching: Watching, registry: Registry) -> None:
    watch = await watching()
    notifications = 0

    def count() -> None:
        nonlocal notifications
        notifications += 1

    watch.subscribe(count)
    await registry.put_models([SPEC])
    pod = await Pod.join_warm(registry, "a", slots=2)
    await reserve(registry, "a", id_="x")
    await until(lambda: "a" in watch.state.pods and watch.state.pods["a"].ongoing == 1)
    assert watch.state.models[SPEC.name].spec == SPEC
    assert watch.state.holders(KEY)["a"].is_warm
    await registry.end_inference("a", "x")
    await until(lambda: watch.state.pods["a"].ongoing == 0)
    await pod.leave()
    await registry.delete_models([SPEC.name])
    await until(lambda: not watch.state.models)
    assert watch.state.pods == {}
    assert watch.state.residency == {}
    assert notifications >= 6
    assert watch.repairs_total == 0


async def test_the_copy_begins_with_a_snapshot(watching: Watching, registry: Registry) -> None:
    await registry.put_models([SPEC])
    pod = await Pod.join_warm(registry, "a")
    await pod.heartbeat(PodReport({"device": 1}, (Samples(KEY, "infer", (0.25,)),), loads_total=1))
    watch = await watching()
    assert await agrees(watch, registry)
    assert watch.state.measured(KEY).infer.seconds == 0.25


async def test_own_changes_are_applied_before_the_call_returns(watching: Watching) -> None:
    watch = await watching()
    pod = await Pod.join(watch.registry, "a", slots=2)
    assert watch.state.pods["a"].epoch == pod.epoch
    await pod.load()
    assert watch.state.holders(KEY)["a"].is_warm
    await reserve(watch.registry, "a", id_="x")
    assert watch.state.pods["a"].slots_used == 1
    await release(watch.registry, "x", "a")
    assert watch.state.pods["a"].slots_used == 0


async def test_own_samples_count_once(watching: Watching) -> None:
    watch = await watching()
    pod = await Pod.join(watch.registry, "a")
    for value in (1.0, 2.0, 10.0):
        await pod.heartbeat(PodReport(samples=(Samples(KEY, "infer", (value,)),)))
    await pod.set_tier(Tier.DISK)
    assert watch.state.measured(KEY).infer.seconds == 2.0


async def test_the_age_is_the_time_since_the_copy_was_complete(watching: Watching) -> None:
    watch = await watching()
    assert 0 <= watch.age_s() < 60
    assert watch.is_connected
    assert ClusterWatch(watch.registry).age_s() == float("inf")


@pytest.mark.usefixtures("without_syncs")
async def test_without_counts_the_copy_follows_everything_else(
    watching: Watching, registry: Registry
) -> None:
    watch = await watching(counts=False)
    pod = await Pod.join_warm(registry, "a", slots=50)
    for _ in range(20):
        await reserve(registry, "a")
    await pod.set_tier(Tier.DISK)
    await until(lambda: KEY in watch.state.residency)
    await until(lambda: watch.state.holders(KEY)["a"].tier is Tier.DISK)
    assert watch.repairs_total == 0


async def test_a_gap_in_the_versions_is_repaired(
    watching: Watching, registry: Registry, server: RedisServer
) -> None:
    watch = await watching()
    await Pod.join(registry, "a")
    await until(lambda: "a" in watch.state.pods)
    with redis.Redis.from_url(server.url) as direct:
        channel = f"{registry.transactions.prefix}changes"
        direct.publish(channel, f'{watch.state.version + 7} 1 forger [["gone","a"]]')
    await until(lambda: watch.repairs_total == 1)
    assert await agrees(watch, registry)
    assert "a" in watch.state.pods
    await Pod.join(registry, "b")
    await until(lambda: "b" in watch.state.pods)


@pytest.mark.slow
async def test_a_lost_last_message_is_noticed(
    watching: Watching, registry: Registry, server: RedisServer
) -> None:
    watch = await watching()
    with redis.Redis.from_url(server.url) as direct:
        direct.incr(f"{registry.transactions.prefix}version")
    await until(lambda: watch.repairs_total == 1)
    assert await agrees(watch, registry)


@pytest.mark.parametrize("payload", [b"", b"x y z []", b"1 2 3", b"99999999999999999 1 x [[["])
async def test_an_unreadable_message_leads_to_a_snapshot(
    watching: Watching, registry: Registry, server: RedisServer, payload: bytes
) -> None:
    watch = await watching()
    with redis.Redis.from_url(server.url) as direct:
        direct.publish(f"{registry.transactions.prefix}changes", payload)
    await until(lambda: watch.repairs_total == 1)
    await Pod.join(registry, "a")
    await until(lambda: "a" in watch.state.pods)


@pytest.mark.slow
async def test_a_killed_subscription_is_made_again(
    watching: Watching, registry: Registry, server: RedisServer
) -> None:
    watch = await watching()
    with redis.Redis.from_url(server.url) as direct:
        direct.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    await until(lambda: not watch.is_connected)
    await Pod.join(registry, "a")
    await until(lambda: "a" in watch.state.pods)
    await until(lambda: watch.is_connected)


async def test_own_changes_with_a_lost_reply_are_applied(
    watching: Watching, registry: Registry, server: RedisServer
) -> None:
    watch = await watching()
    await Pod.join_warm(registry, "a", slots=2)
    await until(lambda: watch.state.holders(KEY).get("a"))
    with redis.Redis.from_url(server.url) as direct:
        own = direct.execute_command("CLIENT", "ID")
        reserved = asyncio.ensure_future(reserve(watch.registry, "a"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the call is on its way, nothing has come back
        for client in direct.client_list():
            if client["id"] != str(own) and "pubsub" not in client["cmd"]:
                with contextlib.suppress(redis.ResponseError):
                    direct.client_kill_filter(_id=client["id"])
    with contextlib.suppress(RegistryUnavailable):
        await reserved

    async def copy_is_right() -> bool:
        try:
            return await agrees(watch, registry)
        except RegistryUnavailable:
            return False

    await eventually(copy_is_right)


async def test_a_script_missing_in_redis_is_loaded_again(
    watching: Watching, registry: Registry, server: RedisServer
) -> None:
    watch = await watching()
    with redis.Redis.from_url(server.url) as direct:
        direct.script_flush()
        pod = await Pod.join(registry, "a")
        direct.script_flush()
        await registry.cluster()
        direct.script_flush()
        await watch.registry.transactions.sync()
    await until(lambda: "a" in watch.state.pods)
    assert pod.epoch > 0
    assert watch.is_connected


@pytest.mark.slow
async def test_an_emptied_redis_leads_to_a_snapshot(
    watching: Watching, registry: Registry, server: RedisServer
) -> None:
    watch = await watching()
    await Pod.join(registry, "a")
    await until(lambda: "a" in watch.state.pods)
    with redis.Redis.from_url(server.url) as direct:
        direct.delete(*direct.keys(f"{registry.transactions.prefix}*".replace("{", "?")))
    await until(lambda: not watch.state.pods)
    await Pod.join(registry, "b")
    await until(lambda: set(watch.state.pods) == {"b"})
    assert await agrees(watch, registry)


async def test_a_reader_that_fails_holds_up_no_operation(watching: Watching) -> None:
    watch = await watching()
    read: list[set[str]] = []

    def fail() -> None:
        raise RuntimeError("a fault of the reader")

    watch.subscribe(fail)
    watch.subscribe(lambda: read.append(set(watch.state.pods)))
    async with asyncio.timeout(10):
        await Pod.join(watch.registry, "a")
    assert {"a"} in read


@pytest.mark.slow
async def test_a_version_that_went_back_leads_to_a_snapshot(
    watching: Watching, registry: Registry, server: RedisServer
) -> None:
    watch = await watching()
    await Pod.join(registry, "a")
    with redis.Redis.from_url(server.url) as direct:
        direct.set(f"{registry.transactions.prefix}version", 5)
    await until(lambda: watch.repairs_total == 1)
    await Pod.join(registry, "b")
    await until(lambda: set(watch.state.pods) == {"a", "b"})


@pytest.mark.slow
async def test_a_sync_publishes_expired_pods(watching: Watching, registry: Registry) -> None:
    first, second = await watching(), await watching()
    pod = await Pod.join_warm(registry, "a")
    await until(lambda: KEY in first.state.residency)
    await until(lambda: KEY in second.state.residency)
    pod.lease_ttl_s = 0.05
    await pod.heartbeat()
    await until(lambda: not first.state.pods and not second.state.pods)
    assert first.state.residency == second.state.residency == {}
    assert first.repairs_total == second.repairs_total == 0


@pytest.mark.slow
async def test_a_sync_publishes_expired_reservations(
    watching: Watching, registry: Registry
) -> None:
    watch = await watching()
    await Pod.join_warm(registry, "a")
    await reserve(registry, "a", id_="x")
    await until(lambda: "a" in watch.state.pods and watch.state.pods["a"].slots_used == 1)
    registry.renew("x", terms("a", ttl_s=0.05))
    await until(lambda: watch.state.pods["a"].slots_used == 0)


@pytest.mark.usefixtures("without_syncs")
async def test_a_refusal_publishes_the_reservations_that_it_removed(
    watching: Watching, registry: Registry
) -> None:
    watch = await watching()
    await Pod.join_warm(registry, "a", slots=2)
    await reserve(registry, "a", ttl_s=0.05)
    cold = "default/cold@1"

    async def is_swept() -> bool:
        assert await reserve(registry, "a", key=cold) is Refusal.COLD
        return watch.state.pods["a"].slots_used == 0

    await eventually(is_swept)
    assert await agrees(watch, registry)


@pytest.mark.usefixtures("without_syncs")
async def test_snapshots_during_changes_lose_none(watching: Watching, connect: Connect) -> None:
    watch = await watching()
    others = [await connect() for _ in range(2)]
    for index in range(4):
        await (await Pod.join(others[0], f"pod-{index}", slots=100)).load()

    async def change(registry: Registry, offset: int) -> None:
        for number in range(60):
            name = f"pod-{(number + offset) % 4}"
            assert isinstance(await reserve(registry, name), Granted)

    async def repair() -> None:
        for count in range(1, 11):
            watch._needs_snapshot.set()
            await until(partial(watch_repaired, watch, count))

    await asyncio.gather(
        change(watch.registry, 0), change(others[0], 1), change(others[1], 2), repair()
    )
    await eventually(lambda: agrees(watch, others[0]))
