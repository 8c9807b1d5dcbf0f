"""Models in archives: unpacked in place of their folder, whatever the archive says."""

import io
import os
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from registry.domain.model import ModelName, ModelSpec
from runtime.errors import ModelInvalid, ModelTooLarge, ModelUnsupported
from runtime.storage.ranged_download import Bandwidth
from runtime.storage.storages import Storages
from runtime.tiers.disk_cache import DiskCache

WEIGHTS = os.urandom(200_000)
FILES = {"model.skops": WEIGHTS, "requirements.txt": b"scikit-learn", "config.json": b"{}"}


def tar(files: Mapping[str, bytes], mode: str) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode) as archive:  # type: ignore[call-overload]  # a text
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return target.getvalue()


def tar_of(info: tarfile.TarInfo, content: bytes = b"") -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(content))
    return target.getvalue()


def entry(name: str = "model.skops", **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return target.getvalue()


def below(top: str) -> dict[str, bytes]:
    return {f"{top}{name}": content for name, content in FILES.items()}


def cache_in(tmp_path: Path, budget_bytes: int = 0) -> DiskCache:
    return DiskCache(tmp_path / "cache", Storages(), Bandwidth(None), budget_bytes=budget_bytes)


def packed(tmp_path: Path, name: str, content: bytes, *, is_named: bool = False) -> ModelSpec:
    folder = tmp_path / "models"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    uri = f"file://{folder}/{name}" if is_named else f"file://{folder}"
    return ModelSpec(ModelName("default", "m"), uri, format="sklearn")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("model.tar.gz", tar(FILES, "w:gz"), id="tar.gz"),
        pytest.param("model.tgz", tar(below("./"), "w:gz"), id="tgz with ./"),
        pytest.param("model.tar", tar(FILES, "w"), id="tar"),
        pytest.param("model.tar.gz", tar(FILES, "w"), id="tar that is called tar.gz"),
        pytest.param("model.tar.bz2", tar(FILES, "w:bz2"), id="tar.bz2"),
        pytest.param("model.zip", zipped(FILES), id="zip"),
        pytest.param("stored.zip", zipped(FILES, zipfile.ZIP_STORED), id="stored zip"),
        pytest.param("MODEL.ZIP", zipped(below("iris/")), id="a folder around the files"),
        pytest.param(
            "model.tar.gz",
            tar({**below("iris/"), "iris/._x": b"mac"}, "w:gz"),
            id="folder with hidden files",
        ),
        pytest.param(
            "model.tar.gz",
            tar({"1/model.skops": b"old", "2/model.skops": WEIGHTS}, "w:gz"),
            id="versions",
        ),
    ],
)
@pytest.mark.parametrize("is_named", [False, True])
def test_an_archive_is_served_as_the_folder_of_its_members(
    tmp_path: Path, name: str, content: bytes, *, is_named: bool
) -> None:
    cache, spec = cache_in(tmp_path), packed(tmp_path, name, content, is_named=is_named)
    folder = cache.fetch_assets(spec)
    (path,) = cache.fetch_weights(spec)
    assert path.read_bytes() == WEIGHTS
    assert path.name == "model.skops"
    assert [each for each in folder.rglob("[!.]*") if each.is_file()] == [path]
    assert cache.has_weights(spec.key)
    assert cache_in(tmp_path).fetch_weights(spec) == (path,)  # a restarted pod


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param(tar_of(entry("../model.skops")), "outside its folder", id="parent"),
        pytest.param(tar_of(entry("/etc/model.skops")), "outside its folder", id="absolute"),
        pytest.param(
            tar_of(entry(type=tarfile.SYMTYPE, linkname="/etc/passwd")), "link", id="link"
        ),
        pytest.param(tar_of(entry(type=tarfile.LNKTYPE, linkname="x")), "link", id="hard link"),
        pytest.param(tar_of(entry(type=tarfile.CHRTYPE)), "device", id="device"),
        pytest.param(tar_of(entry(type=tarfile.FIFOTYPE)), "device", id="pipe"),
        pytest.param(tar(FILES, "w:gz")[:-100_000], "sound archive|truncated", id="truncated"),
        pytest.param(b"not an archive" * 100, "sound archive", id="garbage"),
        pytest.param(b"\x1f\x8b" + os.urandom(1000), "sound archive", id="bad gzip"),
        pytest.param(tar({}, "w:gz"), "has no files", id="empty"),
        pytest.param(entry(size=10 * 1024**4).tobuf(), "is not unpacked: it has more", id="size"),
        pytest.param(
            tar({f"{n}.txt": b"" for n in range(10_001)}, "w:gz"), "more than 10000", id="many"
        ),
        pytest.param(
            tar_of(entry(pax_headers={"comment": "x" * 5_000_000})),
            "sound archive",
            id="long header",
        ),
        pytest.param(
            tar({"README.md": b"", "data.csv": b""}, "w:gz"),
            r"no file of sklearn.*README.md",
            id="no model",
        ),
    ],
)
def test_an_unsound_archive_is_refused_and_leaves_nothing(
    tmp_path: Path, content: bytes, told: str
) -> None:
    cache, spec = cache_in(tmp_path), packed(tmp_path, "model.tar.gz", content)
    with pytest.raises(ModelInvalid, match=told):
        cache.fetch_assets(spec)
    assert not [each for each in (tmp_path / "cache").rglob("*.*") if "skops" in each.name]
    assert not list((tmp_path / "cache").rglob("*.part"))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param(zipped({"../model.skops": b"x"}), "outside its folder", id="parent"),
        pytest.param(zipped(FILES)[:-100], "sound archive", id="truncated"),
    ],
)
def test_an_unsound_zip_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    with pytest.raises(ModelInvalid, match=told):
        cache_in(tmp_path).fetch_assets(packed(tmp_path, "model.zip", content))


def test_a_bomb_is_refused_before_it_unpacks(tmp_path: Path) -> None:
    bomb = zipped({"model.skops": bytes(1024**2)})
    size = bomb.index(b"PK\x01\x02") + 24  # of the uncompressed member, in the directory
    bomb = bomb[:size] + (3 * 1024**3).to_bytes(4, "little") + bomb[size + 4 :]
    with pytest.raises(ModelInvalid, match="100 times its own size"):
        cache_in(tmp_path).fetch_assets(packed(tmp_path, "model.zip", bomb))


def test_members_are_bounded_by_the_budget_of_the_disk(tmp_path: Path) -> None:
    spec = packed(tmp_path, "model.zip", zipped({"model.skops": bytes(1024**2)}))
    with pytest.raises(ModelTooLarge, match="disk budget of 500000 bytes"):
        cache_in(tmp_path, budget_bytes=500_000).fetch_assets(spec)
    assert not list((tmp_path / "cache").rglob("*.skops*"))


def test_a_member_of_several_spans_is_unpacked_whole(tmp_path: Path) -> None:
    weights = os.urandom(17 * 1024**2)
    spec = packed(tmp_path, "model.zip", zipped({"model.skops": weights}, zipfile.ZIP_STORED))
    cache = cache_in(tmp_path)
    cache.fetch_assets(spec)
    (path,) = cache.fetch_weights(spec)
    assert path.read_bytes() == weights


def test_an_archive_that_changed_is_unpacked_anew_once_its_files_are_gone(tmp_path: Path) -> None:
    cache, spec = cache_in(tmp_path), packed(tmp_path, "model.zip", zipped({"model.skops": b"1"}))
    cache.fetch_assets(spec)
    cache.discard(spec.key)
    packed(tmp_path, "model.zip", zipped({"model.skops": b"22"}))
    cache.fetch_assets(spec)
    assert cache.fetch_weights(spec)[0].read_bytes() == b"22"


def test_archives_of_other_kinds_and_beside_other_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupported, match=r"model\.tar\.xz, an archive that is not unpacked"):
        cache_in(tmp_path).fetch_assets(packed(tmp_path, "model.tar.xz", b"x"))
    with pytest.raises(ModelInvalid, match=r"model.tar.xz is an archive.*unpack it"):
        cache_in(tmp_path).fetch_assets(packed(tmp_path, "notes.md", b"x"))
