"""Models that a library fetches: `hf://`, and the schemes of KServe's storage library.

These libraries fetch whole models, take settings from the environment of their process and cannot
be stopped, so each fetch runs in a process of its own (`library_fetch`), which is ended if it
writes too much or takes too long. Its result is read as a folder under the same rules on paths and
kinds, so that no pickle is ever loaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common.parent_death import dies_with_this_thread
from runtime.errors import DiskFull, ModelInvalid, StorageFailed
from runtime.storage.access import StorageAccess
from runtime.storage.file import FolderStorage
from runtime.storage.library_fetch import HUB_SCHEME
from runtime.storage.listing import MAX_WEIGHT_BYTES
from runtime.storage.partial_file import file_bytes, folder_bytes

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
            "runtime.storage.library_fetch",
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
