"""The pod's folder of model files: tier `disk`. It survives a restart of the pod.

One folder per model generation. A file is written aside, synced, checked for its size and renamed,
so a name in the folder always means a whole file; a mapped file is never rewritten in place.
Methods block and are called in threads, at most one writer for one generation at a time.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from runtime.errors import LoadFailed, ModelInvalid, StorageFailed
from runtime.storage import ModelStorage, RemoteFile, assets_of, weights_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from registry.model import ModelSpec
    from runtime.link import LinkRate
    from runtime.storages import Storages

logger = logging.getLogger(__name__)

LISTING = ".listing.json"
INDEX = "model.safetensors.index.json"
FILES_AT_ONCE = 4


class DiskCache:
    """Fetches models into `folder` and knows which of them are complete."""

    def __init__(self, folder: Path, storages: Storages, link: LinkRate) -> None:
        self._folder = folder
        self._storages = storages
        self._link = link
        self._weight_bytes: dict[str, int] = {}
        """Per model with any file here: bytes of its weights, 0 while they are not complete.

        Replaced entry by entry, so the event loop may read it while a thread writes."""
        folder.mkdir(parents=True, exist_ok=True)
        self._adopt_files()

    def keys(self) -> set[str]:
        """Models with any file here."""
        return set(self._weight_bytes)

    def bytes_on_disk(self, key: str) -> int:
        """Bytes of a model's weights; 0 where they are not complete."""
        return self._weight_bytes.get(key, 0)

    def asset_bytes(self, key: str) -> int:
        """Bytes of a model's small files that are here."""
        files = self.folder_of(key).glob("*")
        return sum(file.stat().st_size for file in files if file.suffix != ".safetensors")

    def used_bytes(self) -> int:
        """Bytes of all complete weights."""
        return sum(list(self._weight_bytes.values()))

    def folder_of(self, key: str) -> Path:
        """Where the files of a generation are, or will be."""
        return self._folder / key.replace("/", "~")

    def fetch_assets(self, spec: ModelSpec) -> Path:
        """Fetch the small files of a model and the listing of all; raises LoadFailed."""
        folder = self.folder_of(spec.key)
        if self._listing(folder) is not None:
            return folder
        storage = self._storages.open(spec.storage_uri)
        listing = storage.list_files()
        folder.mkdir(parents=True, exist_ok=True)
        self._weight_bytes.setdefault(spec.key, 0)
        self._fetch_all(storage, assets_of(listing, spec.storage_uri), folder)
        self._write_listing(folder, listing)
        return folder

    def weight_files(self, spec: ModelSpec) -> tuple[RemoteFile, ...]:
        """The files of weights of a model whose assets are here."""
        folder = self.folder_of(spec.key)
        listing = self._listing(folder)
        if listing is None:
            raise StorageFailed(f"the cached files of {spec.key} are gone")
        return weights_of(listing, spec.storage_uri, _indexed_files(folder / INDEX))

    def has_weights(self, key: str) -> bool:
        """Whether every file of weights is here and has its size."""
        self._weight_bytes[key] = size_bytes = self._complete_bytes(key)
        return size_bytes > 0

    def fetch_weights(self, spec: ModelSpec) -> tuple[Path, ...]:
        """Fetch the files of weights that are not here yet; raises LoadFailed."""
        folder = self.folder_of(spec.key)
        files = self.weight_files(spec)
        missing = [file for file in files if not _has_size(folder / file.path, file.size_bytes)]
        if missing:
            self._fetch_all(self._storages.open(spec.storage_uri), missing, folder)
        self._weight_bytes[spec.key] = sum(file.size_bytes for file in files)
        return tuple(folder / file.path for file in files)

    def discard(self, key: str) -> None:
        """Delete the files of a generation; a network that has them mapped keeps them."""
        shutil.rmtree(self.folder_of(key), ignore_errors=True)
        self._weight_bytes.pop(key, None)

    def _adopt_files(self) -> None:
        """Take over what an earlier process left, without what it had not finished."""
        for folder in sorted(self._folder.iterdir()):
            for partial in folder.glob("**/*.part"):
                partial.unlink(missing_ok=True)
            key = folder.name.replace("~", "/", 1)
            self._weight_bytes[key] = self._complete_bytes(key)

    def _complete_bytes(self, key: str) -> int:
        """Bytes of a model's weights if every file is here and has its size, else 0."""
        folder = self.folder_of(key)
        listing = self._listing(folder)
        if listing is None:
            return 0
        try:
            files = weights_of(listing, key, _indexed_files(folder / INDEX))
        except LoadFailed:
            return 0
        if not all(_has_size(folder / file.path, file.size_bytes) for file in files):
            return 0
        return sum(file.size_bytes for file in files)

    def _fetch_all(self, storage: ModelStorage, files: Sequence[RemoteFile], folder: Path) -> None:
        try:
            with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
                fetches = [pool.submit(self._fetch, storage, file, folder) for file in files]
                for fetch in fetches:
                    fetch.result()
        except OSError as error:  # the disk is full, or the folder is not ours
            raise StorageFailed(f"{folder} cannot be written: {error}") from error

    def _fetch(self, storage: ModelStorage, file: RemoteFile, folder: Path) -> None:
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(target.name + ".part")
        try:
            storage.fetch(file, aside, self._link)
            os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)
        if not _has_size(target, file.size_bytes):
            raise StorageFailed(f"{target} has not the {file.size_bytes} bytes that were listed")

    def _write_listing(self, folder: Path, listing: Sequence[RemoteFile]) -> None:
        """Written last: a folder without it counts as empty."""
        rows = [[file.path, file.size_bytes, file.version] for file in listing]
        aside = folder / (LISTING + ".part")
        with aside.open("w") as sink:
            json.dump(rows, sink)
            sink.flush()
            os.fsync(sink.fileno())
        os.replace(aside, folder / LISTING)

    def _listing(self, folder: Path) -> tuple[RemoteFile, ...] | None:
        try:
            rows = json.loads((folder / LISTING).read_text())
            return tuple(RemoteFile(str(path), int(size), str(tag)) for path, size, tag in rows)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            logger.warning("cached listing unreadable, fetching again", extra={"path": folder})
            return None


def _has_size(path: Path, size_bytes: int) -> bool:
    try:
        return path.stat().st_size == size_bytes
    except OSError:
        return False


def _indexed_files(index: Path) -> frozenset[str] | None:
    """The files that an index of sharded weights names; None where there is no index."""
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        names = frozenset(weight_map.values())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelInvalid(f"{index.name} is not an index of weights: {error!r}") from error
    if not names or not all(
        isinstance(name, str) and name.endswith(".safetensors") and "/" not in name
        for name in names
    ):
        raise ModelInvalid(f"{index.name} names files that are not safetensors: {sorted(names)}")
    return names
