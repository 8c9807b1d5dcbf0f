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
    from collections.abc import Iterable, Mapping

    from runtime.storage.bandwidth import BandwidthUse
    from runtime.storage.partial_file import PartialFile

ASSET_SUFFIXES = frozenset({".json", ".txt", ".model", ".jinja"})
WEIGHT_SUFFIX = ".safetensors"
PROGRAM_SUFFIX = ".pt2"
PIPELINE_INDEX = "model_index.json"
PIPELINE_PARTS: Mapping[str, str] = {
    "text_encoder": "model.safetensors",
    "unet": "diffusion_pytorch_model.safetensors",
    "vae": "diffusion_pytorch_model.safetensors",
}
"""The parts of a pipeline that have weights, and how diffusers calls their files."""
TORCHSCRIPT_SUFFIXES = (".pt", ".pth", ".torchscript")
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

    def fetch(
        self, file: RemoteFile, partial: PartialFile, link: BandwidthUse, *, head_only: bool = False
    ) -> None:
        """Bring what `partial` lacks of `file`, or of its first span alone.

        Raises LoadFailed, LoadCancelled, and OSError on a write error.
        """


def assets_of(files: Iterable[RemoteFile], uri: str) -> tuple[RemoteFile, ...]:
    """The small files: configuration, tokenizer, index; raises ModelInvalid on absurd listings.

    A program's signature lies in one file with its weights, which is among them.
    """
    files = tuple(files)
    chosen = tuple(file for file in files if PurePosixPath(file.path).suffix in ASSET_SUFFIXES)
    total = sum(file.size_bytes for file in chosen)
    if len(chosen) > MOST_FILES or total > MOST_ASSET_BYTES:
        raise ModelInvalid(
            f"{uri} has {len(chosen)} small files of {total} bytes;"
            f" at most {MOST_FILES} files and {MOST_ASSET_BYTES} bytes are fetched"
        )
    if (program := _program_of(files, uri)) is not None:
        return (*chosen, *_bounded((program,), uri))
    if not {"config.json", PIPELINE_INDEX} & {file.path for file in chosen}:
        _check_not_torchscript(files, uri)
        seen = sorted(file.path for file in files)[:8]
        raise ModelInvalid(f"{uri} has no config.json; found {seen}")
    return chosen


def weights_of(
    files: Iterable[RemoteFile], uri: str, indexed: frozenset[str] | None
) -> tuple[RemoteFile, ...]:
    """The files of weights: those of the index where there is one, else the only one."""
    by_path = {file.path: file for file in files}
    if (program := _program_of(by_path.values(), uri)) is not None:
        return _bounded((program,), uri)
    if PIPELINE_INDEX in by_path:
        return _bounded(_weights_of_parts(by_path, uri), uri)
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


def _weights_of_parts(by_path: Mapping[str, RemoteFile], uri: str) -> tuple[RemoteFile, ...]:
    """One file for each part of a pipeline that has weights, in 32 bits where there are several."""
    found = []
    for part, name in PIPELINE_PARTS.items():
        if f"{part}/{name}" not in by_path:
            seen = sorted(path for path in by_path if path.startswith(f"{part}/"))[:8]
            raise ModelInvalid(
                f"{uri} has no {part}/{name}; a pipeline's parts each have one file of safetensors"
                f" under diffusers' own name. Found {seen}"
            )
        found.append(by_path[f"{part}/{name}"])
    return tuple(found)


def _program_of(files: Iterable[RemoteFile], uri: str) -> RemoteFile | None:
    """The exported program of a model that is one: there are no other weights beside it."""
    paths = {PurePosixPath(file.path): file for file in files}
    programs = [file for path, file in paths.items() if path.suffix == PROGRAM_SUFFIX]
    if not programs or any(path.suffix == WEIGHT_SUFFIX for path in paths):
        return None
    if len(programs) > 1:
        raise ModelInvalid(
            f"{uri} has several programs: {sorted(file.path for file in programs)[:8]};"
            " a model has one, in a folder of its own"
        )
    return programs[0]


def _check_not_torchscript(files: Iterable[RemoteFile], uri: str) -> None:
    found = sorted(file.path for file in files if file.path.endswith(TORCHSCRIPT_SUFFIXES))
    if found:
        raise ModelInvalid(
            f"{uri} holds {found[:4]}: TorchScript and pickled models are not served, since loading"
            " one runs code that came with it; export the model with torch.export.export and"
            f" torch.export.save to a {PROGRAM_SUFFIX} file"
        )


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
