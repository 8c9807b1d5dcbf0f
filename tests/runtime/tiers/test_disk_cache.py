"""The disk cache: complete files only, from folders and S3, kept over a restart."""

import itertools
from pathlib import Path

import pytest

from registry.domain.model import ModelName, ModelSpec
from runtime.errors import ModelInvalid
from runtime.storage.listing import RemoteFile, checked_listing, weight_files
from runtime.storage.partial_file import SPAN_BYTES, split_spans
from runtime.storage.ranged_download import Bandwidth
from runtime.storage.storages import Storages
from runtime.tiers.disk_cache import DiskCache
from tests import servers


def spec_of(uri: str) -> ModelSpec:
    return ModelSpec(ModelName("default", "m"), uri)


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", Storages(), Bandwidth(None))


@pytest.fixture
def aws(s3: servers.S3Server, monkeypatch: pytest.MonkeyPatch) -> servers.S3Server:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3


def fetch(cache: DiskCache, spec: ModelSpec) -> list[Path]:
    cache.fetch_assets(spec)
    return list(cache.fetch_weights(spec))


def test_copies_only_the_files_of_a_model(cache: DiskCache, models: Path, tmp_path: Path) -> None:
    source = servers.copy_model(models / "tiny-bert", tmp_path / "source")
    (source / "pytorch_model.bin").write_bytes(b"never")
    (source / "code.py").write_text("never")
    (source / ".git").mkdir()
    (source / ".git" / "config.json").write_text("{}")
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}")
    spec = spec_of(source.as_uri())
    (weights,) = fetch(cache, spec)
    assert weights.read_bytes() == (source / "model.safetensors").read_bytes()
    names = {
        path.relative_to(cache.folder_of(spec.key)).as_posix()
        for path in cache.folder_of(spec.key).rglob("*")
        if path.is_file()
    }
    assert "1_Pooling/config.json" in names
    assert not names & {"pytorch_model.bin", "code.py", ".git/config.json"}
    assert cache.bytes_on_disk(spec.key) == weights.stat().st_size


def test_asset_bytes_ignore_unfinished_weights(cache: DiskCache, models: Path) -> None:
    source = models / "tiny-bert"
    small = sum(path.stat().st_size for path in source.iterdir() if path.suffix != ".safetensors")
    spec = spec_of(source.as_uri())
    assert cache.asset_bytes(spec.key) == 0
    folder = cache.fetch_assets(spec)
    assert cache.asset_bytes(spec.key) == small
    # Downloads create and delete files while the pod reports its state.
    (folder / "model.safetensors.part").write_bytes(b"half")
    assert cache.asset_bytes(spec.key) == small
    cache.discard(spec.key)
    assert cache.asset_bytes(spec.key) == 0


@pytest.mark.slow
def test_fetches_from_s3(cache: DiskCache, models: Path, aws: servers.S3Server) -> None:
    aws.put_folder(models / "tiny-vit", "s3://cache-test/a/tiny-vit")
    aws.put_folder(
        models / "tiny-bert", "s3://cache-test/a/tiny-vit-2"
    )  # the same name with a suffix
    (weights,) = fetch(cache, spec_of("s3://cache-test/a/tiny-vit"))
    assert weights.read_bytes() == (models / "tiny-vit" / "model.safetensors").read_bytes()


def test_restart_keeps_complete_weights(cache: DiskCache, models: Path, tmp_path: Path) -> None:
    spec = spec_of((models / "tiny-bert").as_uri())
    (weights,) = fetch(cache, spec)
    (weights.parent / "left.safetensors.part").write_bytes(b"half")
    again = DiskCache(tmp_path / "cache", Storages(), Bandwidth(None))
    assert again.bytes_on_disk(spec.key) == weights.stat().st_size
    assert not list(weights.parent.glob("*.part"))


def test_file_of_another_size_is_fetched_again(
    cache: DiskCache, models: Path, tmp_path: Path
) -> None:
    spec = spec_of((models / "tiny-bert").as_uri())
    (weights,) = fetch(cache, spec)
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    again = DiskCache(tmp_path / "cache", Storages(), Bandwidth(None))
    assert again.bytes_on_disk(spec.key) == 0
    assert fetch(again, spec)[0].read_bytes() == whole


def test_damaged_listing_is_fetched_again(cache: DiskCache, models: Path) -> None:
    spec = spec_of((models / "tiny-bert").as_uri())
    fetch(cache, spec)
    (cache.folder_of(spec.key) / ".listing.json").write_text("[[")
    assert not cache.has_weights(spec.key)
    fetch(cache, spec)
    assert cache.has_weights(spec.key)


def test_discard_deletes_the_folder(cache: DiskCache, models: Path) -> None:
    spec = spec_of((models / "tiny-bert").as_uri())
    fetch(cache, spec)
    cache.discard(spec.key)
    assert cache.keys() == set()
    assert not cache.folder_of(spec.key).exists()


@pytest.mark.parametrize("path", ["../x.json", "a/../../x.json", "/etc/x.json", "a\\b.json"])
def test_refuses_paths_outside_the_folder(path: str) -> None:
    with pytest.raises(ModelInvalid, match="outside its folder"):
        checked_listing([RemoteFile(path, 1)], "s3://b/m")


def test_refuses_too_many_small_files(cache: DiskCache, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    for number in range(1000):
        (source / f"{number}.json").write_text("{}")
    with pytest.raises(ModelInvalid, match="1001 small files"):
        cache.fetch_assets(spec_of(source.as_uri()))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        pytest.param('{"weight_map": {"a": "x.safetensors"}}', "lacks", id="missing-shard"),
        pytest.param('{"weight_map": {"a": "../x.safetensors"}}', "not safetensors", id="path"),
        pytest.param('{"weight_map": {"a": "x.bin"}}', "not safetensors", id="pickle"),
        pytest.param('{"weight_map": []}', "not an index", id="no-map"),
        pytest.param("{", "not an index", id="not-json"),
        pytest.param('{"weight_map": {"a": 1, "b": "x.bin"}}', "not safetensors", id="mixed"),
        pytest.param("[" * 100_000, "not an index", id="deep"),
    ],
)
def test_bad_index_of_shards_is_reported(
    cache: DiskCache, models: Path, tmp_path: Path, index: str, message: str
) -> None:
    source = servers.copy_model(models / "tiny-bert", tmp_path / "source")
    (source / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelInvalid, match=message):
        fetch(cache, spec_of(source.as_uri()))
    cache.refresh()  # as every pod of the node does; it must not fail


def test_several_weights_need_an_index() -> None:
    files = [RemoteFile("a.safetensors", 1), RemoteFile("b.safetensors", 1)]
    with pytest.raises(ModelInvalid, match="no index"):
        weight_files(files, "s3://b/m", None)
    assert weight_files(files[:1], "s3://b/m", None) == (files[0],)


@pytest.mark.parametrize("size", [0, 1, SPAN_BYTES, SPAN_BYTES + 1, 5 * 1024**3 + 7])
def test_spans_cover_a_file_once(size: int) -> None:
    spans = split_spans(size)
    assert sum(span.size_bytes for span in spans) == size
    assert all(one.end == other.start for one, other in itertools.pairwise(spans))
    assert all(span.size_bytes == SPAN_BYTES for span in spans[:-1])
