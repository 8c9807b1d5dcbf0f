"""Speeds of pods in every copy, beside pods, scripts and snapshots of a version without them."""

from functools import partial

import pytest

from registry.domain.cluster import ClusterState, Snapshot, load_snapshot
from registry.domain.pod import AVERAGE, PodReport, PodSpeed, Samples
from registry.redis.client import Registry
from registry.redis.script import read_snapshot
from registry.redis.watch import ClusterWatch
from tests.registry.redis.clients import KEY, Pod, running, until
from tests.registry.redis.conftest import Connect


def has_speed(copy: ClusterWatch, speed: PodSpeed) -> bool:
    return copy.state.pods["a"].speed == speed


@pytest.mark.usefixtures("without_syncs")
async def test_copies_follow_a_pods_speed(registry: Registry, connect: Connect) -> None:
    pod = await Pod.join(registry, "a")
    async with running(ClusterWatch(await connect())) as copy:
        for slowness in (2.0, 1.0, 0.4):
            speed = PodSpeed(slowness, {KEY: 0.1})
            await pod.heartbeat(PodReport(speed=speed))
            await until(partial(has_speed, copy, speed))


@pytest.mark.usefixtures("without_syncs")
async def test_a_speed_that_has_not_changed_is_not_published(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    report = PodReport(speed=PodSpeed(2.0, {KEY: 0.1}))
    await pod.heartbeat(report)
    before = (await registry.cluster()).version
    await pod.heartbeat(report)
    assert (await registry.cluster()).version == before


async def test_a_heartbeat_of_an_older_version_has_no_speed(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    samples = [[KEY, "infer", [0.2]]]
    await registry.transactions.submit(
        "beat", "a", pod.epoch, 60_000, "{}", 0, samples, 0.0, "{}", ""
    )
    state = await registry.cluster()
    assert state.pods["a"].speed is AVERAGE
    assert state.measured(KEY).infer.seconds == pytest.approx(0.2)


async def test_a_snapshot_of_an_older_version_has_no_speeds(registry: Registry) -> None:
    pod = await Pod.join(registry, "a")
    samples = (Samples(KEY, "infer", (0.2,)),)
    await pod.heartbeat(PodReport(samples=samples, speed=PodSpeed(2.0)))
    *older, speeds, _ = await registry.transactions.submit("snapshot")
    assert [name for name, _ in speeds] == ["a"]
    state = ClusterState()
    load_snapshot(state, 1, read_snapshot(older, [()] * 6))
    assert state.pods["a"].speed is AVERAGE
    assert Snapshot._fields[-2:] == ("speeds", "tenants"), "older versions read them by their place"
