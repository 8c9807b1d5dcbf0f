"""A namespace at its quota makes room among its own models, never among those of others."""

from pathlib import Path

import pytest

from registry.domain.model import ModelName, ModelSpec
from runtime.errors import DiskFull, ModelTooLarge
from runtime.storage.ranged_download import Bandwidth
from runtime.storage.storages import Storages
from runtime.tiers.device_cache import CachedModel, DeviceCache
from runtime.tiers.disk_cache import DiskCache

QUOTAS = {"greedy": 200}
SIZE = 100


def loaded(*keys: str, budget_bytes: int = 1000) -> DeviceCache[CachedModel]:
    cache: DeviceCache[CachedModel] = DeviceCache(budget_bytes, quota_of=QUOTAS.get)
    for key in keys:
        assert cache.try_reserve(key, SIZE)
        cache.add(CachedModel(key, SIZE))
    return cache


def test_a_namespace_over_its_quota_evicts_its_own_oldest_model() -> None:
    cache = loaded("other/a@1", "greedy/a@1", "greedy/b@1")
    assert cache.try_reserve("greedy/c@1", SIZE)
    assert list(cache.by_key) == ["other/a@1", "greedy/b@1"]  # half of the device is free


def test_a_namespace_waits_for_its_own_models_in_use() -> None:
    cache = loaded("other/a@1", "greedy/a@1", "greedy/b@1")
    for key in ("greedy/a@1", "greedy/b@1"):
        cache.use(cache.by_key[key])
    assert not cache.try_reserve("greedy/c@1", SIZE)
    cache.end_use(cache.by_key["greedy/a@1"])
    assert cache.try_reserve("greedy/c@1", SIZE)
    assert not cache.try_reserve("greedy/d@1", SIZE)  # the reservation counts
    assert "other/a@1" in cache.by_key


def test_a_full_device_evicts_beyond_the_quota() -> None:
    cache = loaded("other/a@1", "other/b@1", "greedy/a@1", budget_bytes=300)
    assert cache.try_reserve("greedy/b@1", 2 * SIZE)
    assert list(cache.by_key) == ["other/b@1"]


def test_nothing_is_evicted_for_a_load_that_does_not_fit_even_then() -> None:
    cache = loaded("other/a@1", "greedy/a@1", "greedy/b@1", budget_bytes=300)
    cache.use(cache.by_key["other/a@1"])
    cache.use(cache.by_key["greedy/b@1"])
    assert not cache.try_reserve("greedy/c@1", 2 * SIZE)
    assert len(cache.by_key) == 3


def test_a_model_larger_than_the_quota_is_refused() -> None:
    told = r"^greedy/a needs 201 bytes.*quota of memory is 200 bytes: .*--quotas"
    with pytest.raises(ModelTooLarge, match=told):
        loaded().check_fits("greedy/a@1", 201)
    loaded().check_fits("other/a@1", 201)


def make_model(folder: Path, namespace: str, name: str, size: int = SIZE) -> ModelSpec:
    source = folder / "source" / namespace / name
    source.mkdir(parents=True)
    (source / "config.json").write_text("{}")
    (source / "model.safetensors").write_bytes(bytes(size))
    return ModelSpec(ModelName(namespace, name), source.as_uri())


def fetch(cache: DiskCache, spec: ModelSpec) -> None:
    cache.fetch_assets(spec)
    cache.fetch_weights(spec)


def test_the_disk_cache_of_a_namespace_is_bounded(tmp_path: Path) -> None:
    weights = 100_000  # the small files beside them do not matter
    cache = DiskCache(
        tmp_path / "cache", Storages(), Bandwidth(None), quota_of={"greedy": 250_000}.get
    )
    other = make_model(tmp_path, "other", "a", weights)
    greedy = [make_model(tmp_path, "greedy", name, weights) for name in "abc"]
    for spec in (other, *greedy):
        fetch(cache, spec)
    assert [cache.has_weights(spec.key) for spec in (other, *greedy)] == [True, False, True, True]
    with pytest.raises(ModelTooLarge, match=r"quota of cache is 250000 bytes .0.25 MB.: raise"):
        fetch(cache, make_model(tmp_path, "greedy", "large", 250_001))
    in_use = [cache.lock_for_use(spec.key) for spec in greedy]
    with pytest.raises(DiskFull, match="its namespace's quota of 250000 bytes"):
        fetch(cache, make_model(tmp_path, "greedy", "d", weights))
    for lock in in_use:
        lock.release()
    assert cache.has_weights(other.key)
