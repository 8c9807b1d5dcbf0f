"""Which files of a folder the declared format means, whatever lies beside them. Pure.

What is left is one model of that format, so that those who read the folder need not know it.
`FileRules` say what is fetched of it, by who reads the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from runtime.errors import ModelInvalid, ModelUnsupported
from runtime.storage.listing import (
    CODE_SUFFIXES,
    LIBRARY_SUFFIXES,
    LIGHTGBM_SUFFIXES,
    NETWORK_FILES,
    ONNX_SUFFIX,
    PICKLE_ADVICE,
    PIPELINE_INDEX,
    PROGRAM_SUFFIX,
    SKOPS_SUFFIX,
    WEIGHT_SUFFIX,
    XGBOOST_SUFFIXES,
    RemoteFile,
    asset_files,
    every_file,
    in_highest_version,
    model_of_suffixes,
    weight_files,
)

_WEIGHT_INDEX: Final = ".safetensors.index.json"
TAR_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2")
ARCHIVE_SUFFIXES: Final = (*TAR_SUFFIXES, ".zip")
_OTHER_ARCHIVES: Final = (
    ".tar.xz", ".txz", ".tar.zst", ".tzst", ".7z", ".rar", ".gz", ".xz", ".zst",
)  # fmt: skip
"""Of archives that are not unpacked."""


@dataclass(frozen=True, slots=True)
class _Library:
    """A format that a library reads from one file."""

    suffixes: tuple[str, ...]
    """Of files that are served, best first."""
    pickles_advice: str
    """What to do with a pickle of this library."""


_LIBRARIES: Final[Mapping[str, _Library]] = {
    "onnx": _Library((ONNX_SUFFIX,), "export the model to ONNX (model.onnx)"),
    "sklearn": _Library((SKOPS_SUFFIX, ONNX_SUFFIX), PICKLE_ADVICE),
    "xgboost": _Library(
        (*XGBOOST_SUFFIXES, ONNX_SUFFIX),
        "pickles of XGBoost are not served; save the model with model.save_model('model.ubj')",
    ),
    "lightgbm": _Library(
        (*LIGHTGBM_SUFFIXES, ONNX_SUFFIX),
        "pickles of LightGBM are not served; save the model with"
        " model.booster_.save_model('model.txt')",
    ),
}


def declared_paths(
    paths: Iterable[str], model_format: str, uri: str, *, takes_pickles: bool = False
) -> frozenset[str]:
    """The files of the model that is declared; of an unlisted format, or of none, all.

    Raises ModelInvalid where a library's format has no file here, or several.
    """
    paths = sorted(paths)
    library = _LIBRARIES.get(model_format)
    if library is not None:
        return frozenset(_library_paths(paths, model_format, library, uri, takes_pickles))
    if model_format == "triton":
        return frozenset(_triton_paths(paths, uri))
    if model_format == "pytorch":
        return frozenset(_program_paths(paths, uri) or _network_paths(paths))
    return frozenset(_network_paths(paths))


def _library_paths(
    paths: Sequence[str], model_format: str, library: _Library, uri: str, takes_pickles: bool
) -> tuple[str, ...]:
    pickles = CODE_SUFFIXES if model_format == "sklearn" and takes_pickles else ()
    own = tuple(suffix for suffix in library.suffixes if suffix != ONNX_SUFFIX)
    searched = (*own, *pickles, ONNX_SUFFIX)
    within = in_highest_version(paths, (*searched, *CODE_SUFFIXES))
    if found := model_of_suffixes(within, searched, uri):
        return found
    if code := [path for path in within if path.endswith(CODE_SUFFIXES)]:
        raise ModelUnsupported(f"{uri} has {code[:4]}: {library.pickles_advice}")
    raise ModelInvalid(
        f"{uri} has no file of {model_format}: one of"
        f" {', '.join(f'*{suffix}' for suffix in searched)} is needed; found {list(paths[:8])}"
    )


def _triton_paths(paths: Sequence[str], uri: str) -> Sequence[str]:
    """Of a folder as Triton has it: in the highest version, the model of whatever backend."""
    suffixes = (ONNX_SUFFIX, PROGRAM_SUFFIX, *LIBRARY_SUFFIXES)
    within = in_highest_version(paths, suffixes)
    if not NETWORK_FILES & set(paths) or len(within) < len(paths):
        return model_of_suffixes(within, suffixes, uri) or paths
    return _network_paths(paths)


def _program_paths(paths: Sequence[str], uri: str) -> list[str]:
    """An exported program with the small files beside it; empty without one."""
    program = model_of_suffixes(
        in_highest_version(paths, (PROGRAM_SUFFIX,)), (PROGRAM_SUFFIX,), uri
    )
    weights = (PROGRAM_SUFFIX, WEIGHT_SUFFIX, _WEIGHT_INDEX)
    return [*program, *(path for path in paths if not path.endswith(weights))] if program else []


def _network_paths(paths: Sequence[str]) -> Sequence[str]:
    """Without programs and other libraries' files beside a network of transformers or diffusers."""
    if not NETWORK_FILES & set(paths):
        return paths
    if any(path.endswith(WEIGHT_SUFFIX) for path in paths):
        paths = [path for path in paths if not path.endswith(PROGRAM_SUFFIX)]
    has_own_weights = any(path.endswith(WEIGHT_SUFFIX) and "/" not in path for path in paths)
    if has_own_weights and "config.json" in paths:
        paths = [path for path in paths if path != PIPELINE_INDEX]
    others = (ONNX_SUFFIX, SKOPS_SUFFIX, *CODE_SUFFIXES)
    return [path for path in paths if not path.endswith(others)]


def declared_files(
    files: Sequence[RemoteFile], model_format: str, uri: str, *, takes_pickles: bool = False
) -> tuple[RemoteFile, ...]:
    """Those of a model of the declared format, whatever lies beside them; raises ModelInvalid."""
    paths = (file.path for file in files)
    chosen = declared_paths(paths, model_format, uri, takes_pickles=takes_pickles)
    return tuple(file for file in files if file.path in chosen)


@dataclass(frozen=True, slots=True)
class FileRules:
    """Which of a model's files are fetched, by who reads them."""

    assets: Callable[[Iterable[RemoteFile], str], tuple[RemoteFile, ...]]
    weights: Callable[[Iterable[RemoteFile], str, frozenset[str] | None], tuple[RemoteFile, ...]]
    declared: Callable[[Sequence[RemoteFile], str, str], tuple[RemoteFile, ...]]
    """Of all files, those that a model of the declared format consists of; raises ModelInvalid."""
    reads_index: bool = True
    """Whether an index of sharded weights says which files those are."""


OWN_ENGINES = FileRules(asset_files, weight_files, declared_files)
WITH_PICKLES = FileRules(
    partial(asset_files, takes_pickles=True),
    partial(weight_files, takes_pickles=True),
    partial(declared_files, takes_pickles=True),
)
MODEL_SERVER = FileRules(
    every_file,
    lambda files, uri, _indexed: every_file(files, uri),
    lambda files, _format, _uri: tuple(files),
    reads_index=False,
)


def only_archive(files: Sequence[RemoteFile], uri: str) -> RemoteFile | None:
    """The archive, if it is a model's only file; raises ModelUnsupported for kinds not unpacked."""
    if len(files) != 1:
        return None
    path = files[0].path.lower()
    if path.endswith(ARCHIVE_SUFFIXES):
        return files[0]
    if path.endswith(_OTHER_ARCHIVES):
        raise ModelUnsupported(
            f"{uri} has only {files[0].path}, an archive that is not unpacked here: unpack it at"
            f" storageUri, or pack the model as one of {', '.join(ARCHIVE_SUFFIXES)}"
        )
    return None


def archive_hint(files: Sequence[RemoteFile]) -> str:
    """What to say of a folder that lacks a model, but has archives among others; else empty."""
    archives = (*ARCHIVE_SUFFIXES, ".tar.xz")
    found = [file.path for file in files if file.path.lower().endswith(archives)]
    if not found:
        return ""
    return (
        f"; {found[0]} is an archive, which is unpacked only where it is the only file: unpack it"
    )
