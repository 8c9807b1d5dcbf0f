"""Idle memory of a device: the sum, and its report by a pod."""

import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from runtime.tiers.device_cache import CachedModel, DeviceCache
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import metric, predict, wait_idle
from tests.servers import wait_until

NAME = "pilotlight_idle_memory_byte_seconds_total"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_counts_only_idle_models() -> None:
    clock = Clock()
    cache: DeviceCache[CachedModel] = DeviceCache(100, now_s=clock)
    small, large = CachedModel("small", 1), CachedModel("large", 10)
    cache.add(small)
    clock.now_s = 5.0
    cache.add(large)
    cache.use(small, users=2)
    clock.now_s = 7.0
    cache.end_use(small)
    clock.now_s = 8.0
    cache.end_use(small)
    assert cache.idle_byte_s == 5 * 1 + 3 * 10
    clock.now_s = 10.0
    assert cache.idle_byte_s == 5 * 1 + 5 * 10 + 2 * 1
    cache.retire("large", "test")
    clock.now_s = 20.0
    assert cache.idle_byte_s == 5 * 1 + 5 * 10 + 12 * 1


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from(("use", "end", "drop"))),
        max_size=30,
    )
)
def test_equals_the_sum_over_time(steps: list[tuple[int, int, str]]) -> None:
    clock = Clock()
    cache: DeviceCache[CachedModel] = DeviceCache(1000, now_s=clock)
    expected = 0.0
    for passed_s, which, what in steps:
        idle = (each for each in cache.by_key.values() if each.users == 0)
        expected += passed_s * sum(each.memory_bytes for each in idle)
        clock.now_s += passed_s
        entry = cache.by_key.get(str(which))
        if entry is None:
            cache.add(CachedModel(str(which), 10**which))
        elif what == "use":
            cache.use(entry)
        elif what == "end" and entry.users:
            cache.end_use(entry)
        elif what == "drop" and not entry.users:
            cache.retire(str(which), "test")
        assert cache.idle_byte_s == expected


def _scrape(pod: servers.Pod) -> tuple[float, float, float]:
    """Time before the scrape, the sum, time after it."""
    asked_s = time.monotonic()
    byte_s = metric(pod.url, NAME)
    return asked_s, byte_s, time.monotonic()


def test_pod_reports_idle_memory_when_it_ends(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    with cluster.pod_context("pod-a") as pod:
        assert metric(pod.url, NAME) == 0
        predict(pod.url, "m", "x")
        wait_idle(pod)
        size_bytes = metric(pod.url, "pilotlight_tier_bytes", tier="device")
        asked_s, first, had_s = _scrape(pod)
        wait_until(lambda: metric(pod.url, NAME) > 2 * first, what="the sum grows")
        again_s, second, last_s = _scrape(pod)
        assert size_bytes * (again_s - had_s) <= second - first <= size_bytes * (last_s - asked_s)
    reported = cluster.do(lambda registry: registry.idle_byte_s())
    assert isinstance(reported, float)
    assert reported >= second
