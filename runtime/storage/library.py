"""Models that a library fetches: `hf://`, and the schemes of KServe's storage library.

These libraries fetch whole models, take settings from the environment of their process and cannot
be stopped, so each fetch runs this file in a process of its own, which is ended if it
writes too much or takes too long. Its result is read as a folder under the same rules on paths and
kinds, so that no pickle is ever loaded.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common.process import dies_with_this_thread
from runtime.errors import DiskFull, ModelInvalid, StorageFailed
from runtime.storage.access import StorageAccess
from runtime.storage.declared_files import declared_paths
from runtime.storage.file import FolderStorage
from runtime.storage.listing import (
    ASSET_SUFFIXES,
    CODE_SUFFIXES,
    LIGHTGBM_SUFFIXES,
    MAX_WEIGHT_BYTES,
    ONNX_SUFFIX,
    SKOPS_SUFFIX,
    XGBOOST_SUFFIXES,
)
from runtime.storage.partial_file import file_bytes, folder_bytes
from runtime.storage.public_addresses import REFUSAL, AddressRefused, confine_network

# One download by a library: `python -m runtime.storage.library URI STAGING FORMAT [HOSTS]`.
#
# Writes the folder of the model's files into `folder.json` in the staging folder.
# `hf://organisation/model[:revision]` is fetched by huggingface_hub, whose cache, token, endpoint
# and `HF_HUB_OFFLINE` apply, of its files those that the declared FORMAT may need; everything else
# by KServe's storage library. With HOSTS, separated by commas, the process connects to public
# addresses and these hosts only.


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


FETCH_TIMEOUT_S = 3600.0
FIRST_BYTE_TIMEOUT_S = 20.0
"""Without a byte of the model until then the storage counts as unreachable. Libraries retry longer,
those of Google 120 s, while a request waits."""
POLL_INTERVAL_S = 0.25
MIN_FREE_BYTES = 64 * 1024**2


def fetched_folder(
    uri: str,
    staging: Path,
    access: StorageAccess,
    model_format: str = "huggingface",
    *,
    max_bytes: int = MAX_WEIGHT_BYTES,
    first_byte_timeout_s: float = FIRST_BYTE_TIMEOUT_S,
) -> FolderStorage:
    """All files of the model, which are fetched first, unless they are in `staging`. Blocks.

    Raises LoadFailed.
    """
    marker = staging / "folder.json"
    if not marker.exists():
        _Fetch(uri, staging, access, model_format, max_bytes, first_byte_timeout_s).run(marker)
    return FolderStorage(uri, Path(json.loads(marker.read_text())))


@dataclass(frozen=True, slots=True)
class _Fetch:
    uri: str
    staging: Path
    access: StorageAccess
    model_format: str
    max_bytes: int
    first_byte_timeout_s: float

    def run(self, marker: Path) -> None:
        self.staging.mkdir(parents=True, exist_ok=True)
        log = self.staging / "log.txt"
        command = [
            sys.executable,
            "-m",
            "runtime.storage.library",
            self.uri,
            str(self.staging),
            self.model_format,
        ]
        if self.access.hosts is not None:
            command.append(",".join(sorted(self.access.hosts)))
        with log.open("wb") as output, _in_memory(self.access.google) as google:
            process = subprocess.Popen(
                dies_with_this_thread(command),
                cwd=Path(__file__).resolve().parent.parent,
                env=self._environment(google),
                pass_fds=() if google is None else (google,),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            try:
                self._watch(process, log)
            except BaseException:
                shutil.rmtree(self.staging, ignore_errors=True)
                raise
            finally:
                process.kill()
                process.wait()
        if process.returncode or not marker.exists():
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            shutil.rmtree(self.staging, ignore_errors=True)
            reason = "".join(last) or "no reason given"
            raise StorageFailed(f"{self.uri} cannot be fetched: {reason}")

    def _environment(self, google: int | None) -> dict[str, str]:
        """Of the process; a model's own credentials share no cache of the hub with others."""
        environment = dict(self.access.environment)
        if google is not None:
            environment["GOOGLE_APPLICATION_CREDENTIALS"] = f"/proc/self/fd/{google}"
        if not self.access.is_pool:
            environment["HF_HOME"] = str(self.staging / "hub")
            environment["HF_HUB_DISABLE_XET"] = "1"  # connects outside of Python
        return environment

    def _watch(self, process: subprocess.Popen[bytes], log: Path) -> None:
        """Return when the process has ended; raises LoadFailed where it exceeds a limit."""
        began_s = time.monotonic()
        has_begun = self.uri.startswith(HUB_SCHEME)  # the hub's cache is elsewhere
        while True:
            try:
                process.wait(POLL_INTERVAL_S)
            except subprocess.TimeoutExpired:
                pass
            else:
                return
            fetched_bytes = folder_bytes(self.staging) - file_bytes(log)
            has_begun = has_begun or fetched_bytes > 0
            waited_s = time.monotonic() - began_s
            if not has_begun and waited_s > self.first_byte_timeout_s:
                raise StorageFailed(
                    f"{self.uri}: no byte arrived within {self.first_byte_timeout_s:g} s; can this"
                    " pod reach the storage, and has it credentials?"
                )
            if fetched_bytes > self.max_bytes:
                raise ModelInvalid(
                    f"{self.uri} has more than {self.max_bytes} bytes, the limit of a model's files"
                )
            status = os.statvfs(self.staging)
            if status.f_bavail * status.f_frsize < MIN_FREE_BYTES:
                raise DiskFull(f"{self.uri} fills the disk of {self.staging}: free some space")
            if waited_s > FETCH_TIMEOUT_S:
                raise StorageFailed(f"{self.uri} was not fetched within {FETCH_TIMEOUT_S:g} s")


@contextmanager
def _in_memory(text: str) -> Iterator[int | None]:
    """A file that no disk ever holds; None without a text."""
    if not text:
        yield None
        return
    descriptor = os.memfd_create("credentials")
    try:
        os.write(descriptor, text.encode())
        yield descriptor
    finally:
        os.close(descriptor)
