"""The store of models on the device: memory, evictions, removals."""

import time
from pathlib import Path

import pytest

from registry.domain.model import ModelName, ModelSpec
from registry.domain.pod import CopyReport
from runtime.device.worker import DeviceWorker
from runtime.errors import ModelBroken
from runtime.loading.model_store import ModelStore, ServedModel, StoreEntry
from runtime.tasks.processors import load_processor
from tests.runtime.networks import load_network


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


def entry_of(served: ServedModel) -> StoreEntry:
    return StoreEntry(served.spec.key, 600, model=served, free=lambda: None)


def test_store_evicts_within_its_budget(served: ServedModel) -> None:
    evicted: list[tuple[str, str | None]] = []
    store = ModelStore(1000, on_removed=lambda entry, _, other: evicted.append((entry.key, other)))
    assert store.try_reserve(served.spec.key, 600)
    store.add(entry_of(served))
    assert evicted == []
    assert store.try_reserve("other", 500)
    assert not store.holds(served.spec.key)
    assert evicted == [(served.spec.key, "other")]
    assert is_stopped(served)


def test_retired_model_is_removed_after_its_last_use(served: ServedModel) -> None:
    store = ModelStore(1000, now_s=time.monotonic)
    store.add(entry_of(served))
    entry = store.acquire(served.spec.key, users=2)
    assert entry is not None
    assert store.retire(served.spec.key, "withdrawn")
    store.end_use(entry)
    assert not is_stopped(served)
    store.end_use(entry)
    assert is_stopped(served)
    assert not store.retire(served.spec.key, "withdrawn")


def test_retired_model_that_is_used_again_is_removed_after_that(served: ServedModel) -> None:
    """Such as one that was unloaded while requests came without a pause: it stayed for good."""
    store = ModelStore(1000, now_s=time.monotonic)
    store.add(entry_of(served))
    entry = store.acquire(served.spec.key)
    assert entry is not None
    assert store.retire(served.spec.key, "unload")
    assert store.acquire(served.spec.key) is entry
    store.end_use(entry)
    assert not is_stopped(served)
    store.end_use(entry)
    assert is_stopped(served)
    assert not store.holds(served.spec.key)


@pytest.mark.parametrize("reason", ["unload", "withdrawn"])
def test_retired_model_stays_once_it_is_wanted_again(served: ServedModel, reason: str) -> None:
    """Such as one whose unload was answered as failed, since requests kept using it."""
    store = ModelStore(1000, now_s=time.monotonic)
    store.add(entry_of(served))
    entry = store.acquire(served.spec.key)
    assert entry is not None
    store.retire(served.spec.key, reason)
    store.keep(served.spec.key, "other")
    assert entry.retire_reason == reason
    store.keep(served.spec.key, reason)
    store.end_use(entry)
    assert not is_stopped(served)


def test_a_broken_model_stays_for_no_wish(served: ServedModel) -> None:
    store = ModelStore(1000, now_s=time.monotonic)
    store.add(entry_of(served))
    entry = store.acquire(served.spec.key)
    assert entry is not None
    for reason in ("unload", "broken", "unload"):
        store.retire(served.spec.key, reason)
    store.keep(served.spec.key, "unload")
    store.end_use(entry)
    assert is_stopped(served)


def test_store_reports_the_use_of_each_model_since_its_load(served: ServedModel) -> None:
    store = ModelStore(1000, now_s=time.monotonic)
    store.add(entry_of(served))
    key = served.spec.key
    assert store.copy_reports() == {key: CopyReport()}
    entry = store.acquire(key, users=2)
    assert entry is not None
    assert store.copy_reports() == {key: CopyReport(ongoing=2)}
    store.end_request(entry)
    report = store.copy_reports()[key]
    assert (report.ongoing, report.served) == (1, 1)
    assert report.idle_s is not None
    assert 0 <= report.idle_s < 60
    store.retire(key, "withdrawn")
    store.end_request(entry)
    assert store.copy_reports() == {}


def test_broken_model_is_not_acquired_and_removed_after_its_last_use(served: ServedModel) -> None:
    store = ModelStore(1000, now_s=time.monotonic)
    store.add(entry_of(served))
    entry = store.acquire(served.spec.key)
    assert entry is not None
    served.device_model.broken_reason = "it hung"
    store.retire(served.spec.key, "broken")
    with pytest.raises(ModelBroken, match="it hung"):
        store.acquire(served.spec.key)
    store.end_use(entry)
    assert not store.holds(served.spec.key)
