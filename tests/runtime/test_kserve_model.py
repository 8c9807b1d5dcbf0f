"""The store of models on the device: memory, evictions, removals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from registry.domain.model import ModelName, ModelSpec
from runtime.errors import MemoryBusy, ModelTooLarge
from runtime.loading.model_store import Eviction, ModelStore
from runtime.loading.served_model import ServedModel
from runtime.tasks.processors import load_processor
from tests.runtime.networks import load_network

if TYPE_CHECKING:
    from pathlib import Path

    from runtime.device.worker import DeviceWorker


@pytest.fixture
def served(models: Path, device: DeviceWorker) -> ServedModel:
    folder = models / "tiny-bert"
    return ServedModel(
        ModelSpec(ModelName("default", "m"), folder.as_uri()),
        processor=load_processor(folder, None),
        network=load_network(folder),
        device=device,
    )


def is_stopped(model: ServedModel) -> bool:
    return model._network is None


def test_store_evicts_within_its_budget(served: ServedModel) -> None:
    evicted: list[Eviction] = []

    async def run() -> None:
        store = ModelStore(1000, evicted.append)
        await store.reserve(served.spec.key, 600)
        store.add(served, 600)
        with pytest.raises(ModelTooLarge, match="1001 bytes"):
            await store.reserve("other", 1001)
        assert evicted == []
        await store.reserve("other", 500)
        assert not store.holds(served.spec.key)

    asyncio.run(run())
    assert [(each.spec.key, each.evicted_for) for each in evicted] == [(served.spec.key, "other")]
    assert is_stopped(served)


def test_reservation_waits_for_a_model_in_use(
    served: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.loading.model_store.MEMORY_TIMEOUT_S", 0.05)

    async def run() -> None:
        store = ModelStore(1000, lambda _: None)
        store.add(served, 600)
        entry = store.acquire(served.spec.key)
        assert entry is not None
        with pytest.raises(MemoryBusy):
            await store.reserve("other", 500)
        assert store.holds(served.spec.key)
        monkeypatch.setattr("runtime.loading.model_store.MEMORY_TIMEOUT_S", 60.0)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(store.reserve("other", 500))
            await asyncio.sleep(0)
            await store.release(entry)
        assert waiting.done()
        assert not store.holds(served.spec.key)

    asyncio.run(run())


def test_retired_model_is_removed_after_its_last_use(served: ServedModel) -> None:
    async def run() -> None:
        store = ModelStore(1000, lambda _: None)
        store.add(served, 600)
        entry = store.acquire(served.spec.key, users=2)
        assert entry is not None
        assert await store.retire(served.spec.key, "withdrawn")
        await store.release(entry)
        assert not is_stopped(served)
        await store.release(entry)
        assert is_stopped(served)
        assert not await store.retire(served.spec.key, "withdrawn")

    asyncio.run(run())


def test_broken_model_is_not_acquired_and_removed_after_its_last_use(
    served: ServedModel,
) -> None:
    async def run() -> None:
        store = ModelStore(1000, lambda key: None)
        store.add(served, 600)
        entry = store.acquire(served.spec.key)
        assert entry is not None
        assert store.broken_reason(served.spec.key) is None
        served.device_model.broken_reason = "it hung"
        await store.retire(served.spec.key, "broken")
        assert store.acquire(served.spec.key) is None
        assert store.broken_reason(served.spec.key) == "it hung"
        await store.release(entry)
        assert not store.holds(served.spec.key)

    asyncio.run(run())
