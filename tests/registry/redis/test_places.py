"""Places of the plan on a cluster: one pod each, for as long as it lives and the plan lists it."""

import asyncio
from dataclasses import replace

from registry.domain.pod import PodInfo
from registry.domain.records import PlacedPod, PlacedReplica, PlacementRecord
from registry.redis.client import Registry
from registry.redis.reports import AutoscalerLog
from tests.registry.redis.clients import eventually
from tests.registry.redis.conftest import Connect

GPU, OTHER = "GPU-a", "GPU-b"


def place(name: str, gpu: str = GPU, since_s: float = 1.0, **replica: float) -> PlacedPod:
    return PlacedPod(name, PlacedReplica("default/m", gpu, 8, **replica), since_s)


async def plan(registry: Registry, *places: PlacedPod) -> None:
    log = AutoscalerLog(registry)
    token = await log.acquire_lead("one", ttl_s=60)
    assert token is not None
    assert await log.set_placement(
        token, PlacementRecord("usher", "test", 1.0, (GPU, OTHER), pods=places)
    )


async def register(registry: Registry, pod: str, place: str = "", lease_s: float = 60.0) -> int:
    info = PodInfo(pod, f"{pod}:1", "n", place=place, takes_places=GPU)
    return await registry.register_pod(info, lease_ttl_s=lease_s)


async def taken(registry: Registry, pod: str, gpu: str = GPU, hold_s: float = 60.0) -> str:
    found = await registry.take_place(pod, gpu, hold_s=hold_s)
    return found.name if found else ""


async def test_of_two_pods_one_takes_the_place(registry: Registry, connect: Connect) -> None:
    assert await registry.take_place("a", GPU) is None  # no plan
    only = place("placed-0", share_pct=25.0, rate_rps=12.5)
    await plan(registry, only)
    clients = [await connect() for _ in range(8)]
    found = await asyncio.gather(
        *(client.take_place(f"pod-{at}", GPU) for at, client in enumerate(clients))
    )
    assert [each for each in found if each is not None] == [only]


async def test_places_are_on_the_pods_own_gpu_the_oldest_first(registry: Registry) -> None:
    await plan(
        registry, place("placed-3", OTHER, 0.0), place("placed-2", since_s=5.0), place("placed-9")
    )
    assert [await taken(registry, pod) for pod in "abc"] == ["placed-9", "placed-2", ""]
    assert await taken(registry, "d", OTHER) == "placed-3"


async def test_a_pod_keeps_its_place_while_it_starts_and_lives(registry: Registry) -> None:
    await plan(registry, place("placed-0"), place("placed-1", since_s=2.0))
    assert await taken(registry, "a") == "placed-0"
    assert await taken(registry, "a") == "placed-0"  # a new start of the same pod
    await register(registry, "a", "placed-0")
    assert await taken(registry, "b") == "placed-1"
    assert await taken(registry, "a") == "placed-0"
    assert await taken(registry, "c") == ""


async def test_the_place_of_a_pod_that_ends_is_open_at_once(registry: Registry) -> None:
    await plan(registry, place("placed-0"))
    assert await taken(registry, "a") == "placed-0"
    epoch = await register(registry, "a", "placed-0")
    assert await taken(registry, "b") == ""
    await registry.deregister_pod("a", epoch)
    assert await taken(registry, "b") == "placed-0"


async def test_the_place_of_a_pod_that_dies_is_open_after_its_lease(registry: Registry) -> None:
    await plan(registry, place("placed-0"))
    assert await taken(registry, "a") == "placed-0"
    await register(registry, "a", "placed-0", lease_s=0.001)
    await eventually(lambda: _is_taken(registry, "b"))
    assert await taken(registry, "a") == ""


async def test_a_pod_that_never_starts_loses_its_place(registry: Registry) -> None:
    await plan(registry, place("placed-0"))
    assert await taken(registry, "a", hold_s=0.001) == "placed-0"
    await eventually(lambda: _is_taken(registry, "b"))


async def _is_taken(registry: Registry, pod: str) -> bool:
    return await taken(registry, pod) == "placed-0"


async def test_a_pod_that_returns_late_does_not_get_its_place_back(registry: Registry) -> None:
    await plan(registry, place("placed-0"))
    assert await taken(registry, "a") == "placed-0"
    epoch = await register(registry, "a", "placed-0")
    await registry.deregister_pod("a", epoch)
    assert await taken(registry, "b") == "placed-0"
    await register(registry, "b", "placed-0")
    await register(registry, "a", "placed-0")
    assert await taken(registry, "a") == ""
    assert await taken(registry, "b") == "placed-0"


async def test_a_changed_plan_takes_places_away_and_offers_others(registry: Registry) -> None:
    await plan(registry, place("placed-0"))
    assert await taken(registry, "a") == "placed-0"
    await register(registry, "a", "placed-0")
    moved = replace(place("placed-1"), replica=PlacedReplica("default/other", GPU, 4))
    await plan(registry, moved)
    assert await registry.take_place("a", GPU) == moved
    assert await taken(registry, "b") == ""
    await plan(registry)
    assert await taken(registry, "a") == ""
