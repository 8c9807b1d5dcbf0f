"""Models in folders and files of the node."""

from pathlib import Path

import pytest

from registry.domain.model import ModelName, ModelSpec
from runtime.errors import ModelInvalid, StorageFailed
from runtime.storage.file import FileStorage
from runtime.storage.ranged_download import Bandwidth
from runtime.storage.storages import StorageOptions, Storages
from runtime.tiers.disk_cache import DiskCache


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    options = StorageOptions(claim_mounts=tmp_path / "claims")
    return DiskCache(tmp_path / "cache", Storages(options), Bandwidth(None))


@pytest.mark.parametrize(
    "path",
    [
        "m/model.skops",
        "m//model.skops",
        "m/model.skops/",
        "m/",
        "with%20space/model.skops",
        "with space",
        "50%25/model.skops",
    ],
)
@pytest.mark.parametrize("scheme", ["file", "pvc"])
def test_a_uri_names_a_folder_or_a_file(
    cache: DiskCache, tmp_path: Path, scheme: str, path: str
) -> None:
    for name in ("m", "with space", "50%25"):
        folder = tmp_path / "claims" / "c" / name
        folder.mkdir(parents=True)
        (folder / "model.skops").write_bytes(b"skops")
        (folder / "MLmodel").write_bytes(b"")
    uri = f"file://{tmp_path}/claims/c/{path}" if scheme == "file" else f"pvc://c/{path}"
    spec = ModelSpec(ModelName("default", "m"), uri, format="sklearn")
    found = cache.fetch_assets(spec)
    assert [path.read_bytes() for path in cache.fetch_weights(spec)] == [b"skops"]
    assert not (found / "MLmodel").exists()


def test_a_file_outside_the_volume_is_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "model.skops"
    inside.mkdir()
    outside.write_bytes(b"x")
    (inside / "model.skops").symlink_to(outside)
    with pytest.raises(ModelInvalid, match="leads out of its volume"):
        FileStorage(f"file://{inside}/model.skops", inside).list_files()


def test_what_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="does not exist"):
        FileStorage(f"file://{tmp_path}/none").list_files()
