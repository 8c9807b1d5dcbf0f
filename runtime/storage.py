"""Where models come from: a storage URI becomes a listing of files and a way to fetch one.

This module owns the interface and the rules on paths, kinds and sizes; `storage_s3`, `storage_file`
and `storage_library` carry it out. Where fetched files are kept is `disk_cache`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol

from runtime.errors import ModelInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runtime.link import LinkUse
    from runtime.partial_file import PartialFile

ASSET_SUFFIXES = frozenset({".json", ".txt", ".model", ".jinja"})
WEIGHT_SUFFIX = ".safetensors"
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack"})

MOST_FILES = 1_000
MOST_ASSET_BYTES = 256 * 1024**2
MOST_LISTED = 10 * MOST_FILES
MOST_WEIGHT_BYTES = 4 * 1024**4


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a model in storage; `path` is relative to the model's own folder."""

    path: str
    size_bytes: int
    version: str = ""
    """What changes when the content does: an ETag, or a modification time."""


class ModelStorage(Protocol):
    """One model in one storage system. Methods block: they are called in threads."""

    def list_files(self) -> tuple[RemoteFile, ...]:
        """All files under the model's folder; raises StorageFailed."""

    def fetch(self, file: RemoteFile, partial: PartialFile, link: LinkUse) -> None:
        """Bring what `partial` lacks of `file`.

        Raises LoadFailed, LoadCancelled, and OSError on a write error.
        """


def assets_of(files: Iterable[RemoteFile], uri: str) -> tuple[RemoteFile, ...]:
    """The small files: configuration, tokenizer, index; raises ModelInvalid on absurd listings."""
    chosen = tuple(file for file in files if PurePosixPath(file.path).suffix in ASSET_SUFFIXES)
    total = sum(file.size_bytes for file in chosen)
    if len(chosen) > MOST_FILES or total > MOST_ASSET_BYTES:
        raise ModelInvalid(
            f"{uri} has {len(chosen)} small files of {total} bytes;"
            f" at most {MOST_FILES} files and {MOST_ASSET_BYTES} bytes are fetched"
        )
    if all(file.path != "config.json" for file in chosen):
        seen = sorted(file.path for file in files)[:8]
        raise ModelInvalid(f"{uri} has no config.json; found {seen}")
    return chosen


def weights_of(
    files: Iterable[RemoteFile], uri: str, indexed: frozenset[str] | None
) -> tuple[RemoteFile, ...]:
    """The files of weights: those of the index where there is one, else the only one."""
    by_path = {file.path: file for file in files}
    if indexed is not None:
        missing = sorted(indexed - by_path.keys())
        if missing:
            raise ModelInvalid(f"{uri} lacks {missing}, named by its index of weights")
        return _bounded(tuple(by_path[path] for path in sorted(indexed)), uri)
    if "model.safetensors" in by_path:
        return _bounded((by_path["model.safetensors"],), uri)
    found = [path for path in by_path if path.endswith(WEIGHT_SUFFIX) and "/" not in path]
    if len(found) == 1:
        return _bounded((by_path[found[0]],), uri)
    if found:
        raise ModelInvalid(f"{uri} has several files of weights and no index: {sorted(found)}")
    pickled = sorted(path for path in by_path if PurePosixPath(path).suffix in PICKLE_SUFFIXES)
    if pickled:
        raise ModelInvalid(
            f"{uri} holds its weights only as {pickled}, which can run code when read;"
            " only safetensors are loaded: convert the model to safetensors"
        )
    raise ModelInvalid(f"{uri} has no *.safetensors file")


def _bounded(files: tuple[RemoteFile, ...], uri: str) -> tuple[RemoteFile, ...]:
    total = sum(file.size_bytes for file in files)
    if len(files) > MOST_FILES or total > MOST_WEIGHT_BYTES:
        raise ModelInvalid(
            f"{uri} has {len(files)} files of weights of {total} bytes;"
            f" at most {MOST_FILES} files and {MOST_WEIGHT_BYTES} bytes are fetched"
        )
    return files


def is_safe_path(path: str) -> bool:
    """Whether a file's path stays inside the folder it is written to."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or "\\" in path or "\0" in path:
        return False
    return all(part not in {"..", "."} and not part.startswith(".") for part in parts)


def checked_listing(files: Iterable[RemoteFile], uri: str) -> tuple[RemoteFile, ...]:
    """The listing without hidden files; raises ModelInvalid where a path would leave its folder."""
    kept = []
    for file in files:
        parts = PurePosixPath(file.path).parts
        if ".." in parts or file.path.startswith("/") or "\\" in file.path or "\0" in file.path:
            raise ModelInvalid(f"{uri} holds a file with a path outside its folder: {file.path!r}")
        if is_safe_path(file.path):
            kept.append(file)
    return tuple(sorted(kept, key=lambda file: file.path))
