"""Models in folders and files of the node."""

import hashlib
from pathlib import Path

import pytest

from registry.domain.model import ModelName, ModelSpec
from registry.domain.tenant_rules import parse_rules
from runtime.errors import ModelInvalid, StorageFailed
from runtime.storage.file import FileStorage, FolderStorage, mounted_model
from runtime.storage.ranged_download import Bandwidth
from runtime.storage.storages import StorageOptions, Storages
from runtime.tiers.disk_cache import DiskCache
from tests.registry.inference_service.test_fields import declared, read


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


@pytest.mark.parametrize("folder", ["", "models"])
@pytest.mark.parametrize("form", ["oci", "oci+native"])
def test_an_image_is_read_where_its_volume_is_mounted(
    cache: DiskCache, tmp_path: Path, form: str, folder: str
) -> None:
    mount = tmp_path / "claims" / "oci" / "ghcr.io" / "org" / "iris" / "v1" / folder
    mount.mkdir(parents=True)
    (mount / "model.skops").write_bytes(b"skops")
    spec = read(declared(model={"storageUri": f"{form}://ghcr.io/org/iris:v1"}))
    cache.fetch_assets(spec)
    assert [path.read_bytes() for path in cache.fetch_weights(spec)] == [b"skops"]


SOURCE = "s3://models/all"
LOCAL = "internal.serving.kserve.io/localmodel"


def cached_locally(tmp_path: Path, uri: str, claim: str = "cache-gpu") -> ModelSpec:
    """A model as KServe's webhook leaves it, and its files where KServe's jobs put them."""
    key = hashlib.sha256(SOURCE.encode()).hexdigest()[:16]
    folder = tmp_path / "claims" / "cache-gpu" / "models" / key / "iris"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.skops").write_bytes(b"local")
    document = declared(model={"storageUri": uri})
    document["metadata"]["annotations"] = {f"{LOCAL}-pvc-name": claim, f"{LOCAL}-sourceuri": SOURCE}
    return read(document)


def test_a_local_model_caches_claim_is_read_in_place_of_a_download(
    cache: DiskCache, tmp_path: Path
) -> None:
    spec = cached_locally(tmp_path, f"{SOURCE}/iris")
    cache.fetch_assets(spec)
    assert [path.read_bytes() for path in cache.fetch_weights(spec)] == [b"local"]


@pytest.mark.parametrize(
    ("uri", "claim"),
    [
        pytest.param("s3://models/other", "cache-gpu", id="another model's"),
        pytest.param(f"{SOURCE}-2/iris", "cache-gpu", id="a longer name"),
        pytest.param(f"{SOURCE}/iris", "../claims/cache-gpu", id="a way out"),
        pytest.param(f"{SOURCE}/iris", "not-mounted", id="not mounted"),
    ],
)
def test_no_other_claim_stands_for_a_models_uri(tmp_path: Path, uri: str, claim: str) -> None:
    spec = cached_locally(tmp_path, uri, claim)
    assert mounted_model(spec, tmp_path / "claims") is None


def test_a_claim_is_not_read_for_who_may_not_use_the_pools_credentials(tmp_path: Path) -> None:
    spec = cached_locally(tmp_path, f"{SOURCE}/iris")
    rules = parse_rules(prefixes="")
    storages = Storages(StorageOptions(rules=lambda: rules, claim_mounts=tmp_path / "claims"))
    assert not isinstance(storages.open(spec, tmp_path / "staging"), FolderStorage)
