"""Models that only a library can fetch: `hf://`, and what KServe's storage library reads.

The libraries fetch whole models, keep settings in the environment of their process and cannot be
stopped, so each runs in a process of its own (`library_fetch`), which is watched and ended where it
brings too much or takes too long. What it brought is read as a folder: the same rules on paths and
kinds hold, so that no pickle is ever used.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.errors import DiskFull, ModelInvalid, StorageFailed
from runtime.storage.file import FolderStorage
from runtime.storage.listing import MOST_WEIGHT_BYTES, RemoteFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.storage.bandwidth import BandwidthUse
    from runtime.storage.partial_file import PartialFile

LONGEST_S = 3600.0
LOOK_EVERY_S = 0.25
LEAST_FREE_BYTES = 64 * 1024**2


class LibraryStorage:
    """A model at a URI that a library understands."""

    def __init__(
        self,
        uri: str,
        staging: Path,
        environment: Mapping[str, str],
        *,
        most_bytes: int = MOST_WEIGHT_BYTES,
    ) -> None:
        self._uri = uri
        self._staging = staging
        self._environment = environment
        self._most_bytes = most_bytes
        self._fetched: FolderStorage | None = None

    def list_files(self) -> tuple[RemoteFile, ...]:
        """All files of the model, which are fetched for it."""
        return self._folder().list_files()

    def fetch(
        self, file: RemoteFile, partial: PartialFile, link: BandwidthUse, *, head_only: bool = False
    ) -> None:
        """Copy one file out of what was fetched."""
        self._folder().fetch(file, partial, link, head_only=head_only)

    def _folder(self) -> FolderStorage:
        """What was fetched, in this call or an earlier one."""
        if self._fetched is None:
            marker = self._staging / "folder.json"
            if not marker.exists():
                self._run(marker)
            self._fetched = FolderStorage(self._uri, Path(json.loads(marker.read_text())))
        return self._fetched

    def _run(self, marker: Path) -> None:
        self._staging.mkdir(parents=True, exist_ok=True)
        log = self._staging / "log.txt"
        command = [
            sys.executable,
            "-m",
            "runtime.storage.library_fetch",
            self._uri,
            str(self._staging),
        ]
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command,
                cwd=Path(__file__).resolve().parent.parent,
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )
            try:
                self._watch(process)
            except BaseException:
                shutil.rmtree(self._staging, ignore_errors=True)
                raise
            finally:
                process.kill()
                process.wait()
        if process.returncode or not marker.exists():
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            shutil.rmtree(self._staging, ignore_errors=True)
            raise StorageFailed(
                f"{self._uri} cannot be fetched: {''.join(last) or 'no reason given'}"
            )

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Return when the process has ended; raises where it must not go on."""
        give_up_s = time.monotonic() + LONGEST_S
        while True:
            try:
                process.wait(LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                pass
            else:
                return
            brought = _bytes_below(self._staging)
            if brought > self._most_bytes:
                raise ModelInvalid(
                    f"{self._uri} has more than {self._most_bytes} bytes, which is the most fetched"
                )
            status = os.statvfs(self._staging)
            if status.f_bavail * status.f_frsize < LEAST_FREE_BYTES:
                raise DiskFull(f"{self._uri} fills the disk of {self._staging}: free some")
            if time.monotonic() > give_up_s:
                raise StorageFailed(f"{self._uri} was not fetched within {LONGEST_S:g} s")


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name), follow_symlinks=False).st_size
            except OSError:  # renamed meanwhile
                continue
    return total
