"""One download by a library: `python -m runtime.storage.library_fetch URI STAGING FORMAT [HOSTS]`.

Writes the folder of the model's files into `folder.json` in the staging folder.
`hf://organisation/model[:revision]` is fetched by huggingface_hub, whose cache, token, endpoint and
`HF_HUB_OFFLINE` apply, of its files those that the declared FORMAT may need; everything else by
KServe's storage library. With HOSTS, separated by commas, the process connects to public addresses
and these hosts only.
"""

from __future__ import annotations

import glob
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from runtime.storage.access import REFUSAL, AddressRefused, confine_network
from runtime.storage.declared_files import declared_paths
from runtime.storage.listing import (
    ASSET_SUFFIXES,
    CODE_SUFFIXES,
    LIGHTGBM_SUFFIXES,
    ONNX_SUFFIX,
    SKOPS_SUFFIX,
    XGBOOST_SUFFIXES,
)

HUB_PATTERNS = (*sorted(f"*{suffix}" for suffix in ASSET_SUFFIXES), "*.safetensors", "*.pt2")
"""Of networks and programs."""
HUB_PATTERNS_OF: Mapping[str, tuple[str, ...]] = {
    "onnx": ("*.onnx*", "*.data", "*.bin", "*.json"),
    "sklearn": (*(f"*{each}" for each in (SKOPS_SUFFIX, ONNX_SUFFIX, *CODE_SUFFIXES)), "*.json"),
    "xgboost": (*(f"*{each}" for each in (*XGBOOST_SUFFIXES, ONNX_SUFFIX, *CODE_SUFFIXES)),),
    "lightgbm": (*(f"*{each}" for each in (*LIGHTGBM_SUFFIXES, ONNX_SUFFIX, *CODE_SUFFIXES)),),
}
HUB_IGNORED = ("original/*", "consolidated*.safetensors", "pytorch_model*.bin")
"""Weights that repositories hold a second time."""
HUB_SCHEME = "hf://"
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def main() -> int:
    """Fetch; on failure the last line on standard error says why."""
    uri, staging = sys.argv[1], Path(sys.argv[2])
    if len(sys.argv) > 4:
        confine_network(frozenset(sys.argv[4].split(",")) - {""})
    try:
        if uri.startswith(HUB_SCHEME):
            folder = from_hub(uri, sys.argv[3])
        else:
            folder = from_library(uri, staging / "model")
    except Exception as error:  # the libraries document no exceptions of their own
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        sys.stderr.write(f"\n{REFUSAL if _is_refused(error) else reason}\n")
        return 1
    aside = staging / "folder.json.aside"
    aside.write_text(json.dumps(str(folder)))
    aside.rename(staging / "folder.json")
    return 0


def _is_refused(error: BaseException | None) -> bool:
    """Whether a refused address is the cause of an error, through all that hide it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, AddressRefused):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def from_hub(uri: str, model_format: str) -> str:
    """The folder of a snapshot in huggingface_hub's cache."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    path, revision = hub_name(uri)
    try:
        return snapshot_download(
            path,
            revision=revision,
            allow_patterns=_hub_patterns(path, revision, model_format),
            ignore_patterns=list(HUB_IGNORED),
        )
    except LocalEntryNotFoundError as error:
        if _is_refused(error):
            raise
        if constants.HF_HUB_OFFLINE:
            raise ValueError(
                f"HF_HUB_OFFLINE is set, and the cache of the hub ({constants.HF_HUB_CACHE}) does"
                " not have it: unset HF_HUB_OFFLINE, or download it there before"
            ) from error
        cause = error.__cause__ or error.__context__ or error
        raise ValueError(
            f"the hub at {constants.ENDPOINT} does not answer ({type(cause).__name__}: {cause}),"
            " and its cache does not have the model: HF_ENDPOINT names another hub"
        ) from error


def _hub_patterns(path: str, revision: str | None, model_format: str) -> list[str]:
    """Of the files to download: of a library's format the model's alone, where the hub lists it.

    Repositories hold the same model many times, as ONNX in each of eight precisions.
    """
    if model_format not in HUB_PATTERNS_OF:
        return list(HUB_PATTERNS)
    from huggingface_hub import HfApi

    try:
        files = HfApi().list_repo_files(path, revision=revision)
        chosen = declared_paths(files, model_format, path, takes_pickles=True)
    except Exception:  # offline, or no such model: the download says so
        return list(HUB_PATTERNS_OF[model_format])
    return [glob.escape(each) for each in chosen]


def hub_name(uri: str) -> tuple[str, str | None]:
    """Repository and revision of `hf://organisation/model[:revision]`; `@` may stand for `:`."""
    path, *revision = re.split("[:@]", uri.removeprefix(HUB_SCHEME), maxsplit=1)
    if path.count("/") != 1 or not all(path.split("/")):
        raise ValueError(f"storage URI {uri!r} must be hf://organisation/model[:revision]")
    return path, revision[0] if revision and revision[0] else None


def from_library(uri: str, folder: Path) -> str:
    """The folder that KServe's storage library filled."""
    try:
        from kserve_storage import Storage
    except ImportError as error:
        raise ValueError(
            f"{uri} is read by KServe's storage library: install kserve-storage"
            " (pip install 'pilotlight[storage]') in the pods' environment"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    confine(folder.parent)
    return str(Storage.download(uri, str(folder)))


def confine(folder: Path) -> None:
    """Refuse writes of this process elsewhere: names of objects may lead out of a folder."""
    root = os.path.realpath(folder) + os.sep
    tempfile.tempdir = str(folder)
    sys.dont_write_bytecode = True

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event != "open":
            return
        path, _, flags = arguments
        if isinstance(path, str | bytes) and isinstance(flags, int) and flags & WRITE_FLAGS:
            target = os.path.realpath(os.fsdecode(path))
            if not target.startswith((root, "/dev/")):
                raise PermissionError(
                    f"the model has a file with a path outside its folder: {target}"
                )

    sys.addaudithook(refuse)


if __name__ == "__main__":
    sys.exit(main())
