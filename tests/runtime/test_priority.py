"""Loads that requests wait for overtake preloads, by order of completion on a limited link."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from registry.domain.model import ModelSpec, Tier
from registry.domain.pod_state import ANY_COPIES
from runtime.errors import HostTierRefused, LoadCancelled
from runtime.loading import model_tiers
from tests.runtime.large_models import until
from tests.runtime.local_pod import LocalPod, local_pod, spec_of
from tests.servers import copy_model

pytestmark = pytest.mark.slow

RATE = 15_000_000
"""Bytes per second: a large model takes a good second, time enough to be overtaken."""


@pytest.fixture
def specs(models: Path) -> dict[str, ModelSpec]:
    return {name: spec_of(name, models / "tiny-bert") for name in ("a", "b")}


@pytest.fixture
def pair(large: Path) -> dict[str, ModelSpec]:
    """Two models of one size: side by side, the one that began first ends first."""
    return {name: spec_of(name, large) for name in ("a", "b")}


async def fetch_small_files(pod: LocalPod, pair: dict[str, ModelSpec]) -> None:
    for spec in pair.values():
        await pod.loader.resolver.processors.get(spec)


class Ends:
    """Writes down in which order things end."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.order: list[str] = []
        self._tasks = tasks

    def start(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        async def run() -> None:
            await work
            self.order.append(name)

        self._tasks.create_task(run())


async def weights_begin(pod: LocalPod, spec: ModelSpec) -> None:
    def have_begun() -> bool:
        load = pod.coordinator.loads.running.get(spec.key)
        return load is not None and load.ticket.has_started

    await until(have_begun, "bytes of weights come")


async def test_request_overtakes_a_preload_that_began_first(
    pair: dict[str, ModelSpec], tmp_path: Path
) -> None:
    async with local_pod(tmp_path, link_rate=RATE) as pod:
        await fetch_small_files(pod, pair)
        async with asyncio.TaskGroup() as tasks:
            ends = Ends(tasks)
            ends.start("preload", pod.coordinator.preload(pair["a"], ANY_COPIES))
            await weights_begin(pod, pair["a"])
            ends.start("request", pod.coordinator.acquire(pair["b"]))
        assert ends.order == ["request", "preload"]


async def test_preload_that_a_request_joins_overtakes_one_that_began_first(
    pair: dict[str, ModelSpec], tmp_path: Path
) -> None:
    async with local_pod(tmp_path, link_rate=RATE) as pod:
        await fetch_small_files(pod, pair)
        async with asyncio.TaskGroup() as tasks:
            ends = Ends(tasks)
            ends.start("first", pod.coordinator.preload(pair["a"], ANY_COPIES))
            await weights_begin(pod, pair["a"])
            ends.start("joined", pod.coordinator.preload(pair["b"], ANY_COPIES))
            await until(lambda: pod.coordinator.is_loading(pair["b"].key), "it is under way")
            ends.start("request", pod.coordinator.acquire(pair["b"]))
        assert sorted(ends.order[:2]) == ["joined", "request"]
        assert ends.order[2] == "first"


async def test_request_makes_the_preload_to_disk_urgent_that_brings_its_bytes(
    pair: dict[str, ModelSpec], tmp_path: Path
) -> None:
    async with local_pod(tmp_path, link_rate=RATE) as pod:
        await fetch_small_files(pod, pair)
        async with asyncio.TaskGroup() as tasks:
            ends = Ends(tasks)
            ends.start("preload", pod.coordinator.preload(pair["a"], ANY_COPIES))
            await weights_begin(pod, pair["a"])
            ends.start("disk", pod.coordinator.preload(pair["b"], ANY_COPIES, Tier.DISK))
            await until(lambda: pair["b"].key in pod.coordinator._preloads._tickets, "it runs")
            ends.start("request", pod.coordinator.acquire(pair["b"]))
        assert ends.order[-1] == "preload"


@pytest.mark.parametrize("tier", [Tier.DISK, Tier.HOST])
async def test_preload_to_a_tier_stops_there_and_the_load_starts_from_it(
    specs: dict[str, ModelSpec], tmp_path: Path, tier: Tier
) -> None:
    async with local_pod(tmp_path, host_bytes=1 << 30) as pod:
        spec, resolver = specs["a"], pod.loader.resolver
        await pod.coordinator.preload(spec, ANY_COPIES, tier)
        assert not pod.loader.store.holds(spec.key)
        assert resolver.processors.has(spec.key)
        assert await pod.loader.nearest_tier(spec.key) is tier
        await pod.coordinator.preload(spec, ANY_COPIES, tier)  # which is nothing more to do
        held = await pod.coordinator.acquire(spec)
        assert held.start == tier.value
        held.release()


async def test_model_on_disk_is_copied_to_host_without_a_download(
    specs: dict[str, ModelSpec], models: Path, tmp_path: Path
) -> None:
    source = copy_model(models / "tiny-bert", tmp_path / "source")
    spec = spec_of("moved", source)

    async with local_pod(tmp_path, host_bytes=1 << 30) as pod:
        await pod.coordinator.preload(spec, ANY_COPIES, Tier.DISK)
        source.rename(tmp_path / "away")
        await pod.coordinator.preload(spec, ANY_COPIES, Tier.HOST)
        assert pod.loader.resolver.host.bytes_of(spec.key)


@pytest.mark.parametrize(
    ("host_bytes", "message", "is_on_disk"),
    [
        pytest.param(0, "it is off at this pod", False, id="off"),
        pytest.param(10_000, "does not fit into its budget", True, id="too-small"),
    ],
)
async def test_host_tier_that_takes_no_model_says_why(
    specs: dict[str, ModelSpec], tmp_path: Path, host_bytes: int, message: str, *, is_on_disk: bool
) -> None:
    async with local_pod(tmp_path, host_bytes=host_bytes) as pod:
        with pytest.raises(HostTierRefused, match=message):
            await pod.coordinator.preload(specs["a"], ANY_COPIES, Tier.HOST)
        cache = pod.loader.resolver.cache
        assert (cache.bytes_on_disk(specs["a"].key) > 0) is is_on_disk


async def test_unloading_ends_a_preload_to_a_tier(
    specs: dict[str, ModelSpec], tmp_path: Path
) -> None:
    async with local_pod(tmp_path, link_rate=50_000) as pod:
        preload = asyncio.create_task(pod.coordinator.preload(specs["a"], ANY_COPIES, Tier.DISK))
        await until(lambda: specs["a"].key in pod.coordinator._preloads._tickets, "it runs")
        (ticket,) = pod.coordinator._preloads._tickets[specs["a"].key]
        await until(lambda: ticket.has_started, "bytes of weights come")
        await pod.coordinator.cancel(specs["a"].key, "it was unloaded")
        with pytest.raises(LoadCancelled, match="it was unloaded"):
            await preload
        cache = pod.loader.resolver.cache
        assert not list(cache.folder_of(specs["a"].key).rglob("*.part*"))


async def test_a_preload_to_a_tier_that_waits_for_others_can_be_cancelled(
    specs: dict[str, ModelSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_tiers, "MAX_PRELOADS", 1)
    async with local_pod(tmp_path, link_rate=50_000) as pod:
        tickets = pod.coordinator._preloads._tickets
        first, second = (
            asyncio.create_task(pod.coordinator.preload(specs[name], ANY_COPIES, Tier.DISK))
            for name in ("a", "b")
        )
        await until(lambda: len(tickets) == 2, "both are wanted")
        await pod.coordinator.cancel(specs["b"].key, "it was unloaded")
        with pytest.raises(LoadCancelled, match="it was unloaded"):
            await second
        assert not pod.loader.resolver.cache.folder_of(specs["b"].key).exists()
        assert not first.done()
        await pod.coordinator.cancel(specs["a"].key, "it was unloaded")
        with pytest.raises(LoadCancelled, match="it was unloaded"):
            await first
