"""Tier `host`: weights in the node's memory, one image file per model, mapped by the node's pods.

An image is written under a temporary name and a lock, complete and read-only before it is renamed,
never changed afterwards, and deleted only while no process maps it. The kernel releases the locks
of a killed pod. Methods block and are called in threads, except where noted.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from runtime.errors import ModelInvalid
from runtime.metrics import EVICTIONS
from runtime.storage.listing import RemoteFile
from runtime.storage.partial_file import PARTIAL_SUFFIX
from runtime.tiers.eviction import Candidate, lru
from runtime.tiers.host_folder import (
    IMAGE_SUFFIX,
    HostFolder,
    HostFolderUnusable,
    HostSockets,
    delete_if_free,
    lock_if_free,
    partial_path,
)
from runtime.tiers.host_image import HostImage, ImageDamaged, image_bytes, write_image
from runtime.weights.weight_source import DiskWeights, WeightSource

logger = logging.getLogger(__name__)

MAX_WRITERS = 4


class PutOutcome(StrEnum):
    """The result of copying a model to the tier."""

    DONE = "done"
    THERE = "there"
    UNDER_WAY = "under-way"
    """Another pod of the node copies it."""
    NO_ROOM = "no-room"
    """The model exceeds the part of the budget that mapped images leave."""
    FAILED = "failed"
    STOPPED = "stopped"
    OFF = "off"


class HostTier:
    """One pod's access to the tier; without a folder the tier is off."""

    def __init__(self, folder: HostFolder | None, budget_bytes: int) -> None:
        self._folder = folder
        self.budget_bytes = budget_bytes if folder else 0
        self.on_no_room: Callable[[], bool] = lambda: False
        """Called while images in use leave too little room; True if it has let go of one."""
        self.on_wanted: Callable[[], None] = lambda: None
        """Called where another pod of the node has found too little room; may not block."""
        self._closing = threading.Event()
        self._bytes: dict[str, int] = {}
        """Bytes of each model's image at the last refresh, which replaces the whole dictionary: any
        thread may read it."""
        self._changed: set[str] = set()
        self._refresh_lock = threading.Lock()
        self.sockets = None if folder is None else HostSockets(folder)
        """Of the node's pods; None where the tier is off."""
        if folder is not None:
            with folder.changing():
                _delete_unfinished(folder)
            self._refresh()

    @property
    def is_on(self) -> bool:
        return self._folder is not None

    # State of the last refresh; these do not block

    def keys(self) -> set[str]:
        return set(self._bytes)

    def bytes_of(self, key: str) -> int:
        """Bytes of a model's image; 0 without one."""
        return self._bytes.get(key, 0)

    def used_bytes(self) -> int:
        """Bytes of all images of the node."""
        return sum(self._bytes.values())

    def changes(self) -> set[str]:
        """Models that any pod of the node added or removed since the last call."""
        self._refresh()
        with self._refresh_lock:
            changed, self._changed = self._changed, set()
        return changed

    def _refresh(self) -> None:
        if self._folder is None:
            return
        with self._refresh_lock:
            before = self._bytes
            try:
                self._bytes = {
                    file.key: file.size_bytes for file in self._folder.files(IMAGE_SUFFIX)
                }
                if self._folder.is_room_wanted():
                    self.on_wanted()
            except OSError as error:  # retried at the next refresh
                logger.warning("host tier not read", extra={"error": error})
            self._changed |= {key for key, _ in before.items() ^ self._bytes.items()}

    # Use

    def open(self, key: str, files: Sequence[RemoteFile]) -> HostImage | None:
        """The image made from these files, protected from deletion until closed and unmapped."""
        if self._folder is None:
            return None
        path = self._folder.image_path(key, files)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            if not lock_if_free(descriptor, fcntl.LOCK_SH) or not os.fstat(descriptor).st_nlink:
                raise FileNotFoundError(f"{path} is being deleted")
            image = HostImage(descriptor, path.name)
            os.utime(descriptor)
        except (ImageDamaged, ValueError, TypeError, KeyError) as error:
            os.close(descriptor)
            logger.warning("host image damaged, deleted", extra={"key": key, "error": error})
            path.unlink(missing_ok=True)  # existing memory maps stay valid
            self._refresh()
            return None
        except OSError as error:
            os.close(descriptor)
            logger.debug("host image not opened", extra={"key": key, "error": error})
            return None
        return image

    def put_files(
        self,
        key: str,
        files: Sequence[RemoteFile],
        paths: Sequence[Path],
        should_stop: Callable[[], bool] = lambda: False,
        form: Callable[[WeightSource], WeightSource] = lambda source: source,
    ) -> PutOutcome:
        """Copy a model from its files on disk; raises LoadFailed if they cannot be read.

        `form`: gives the weights the form in which they are copied.
        """
        source = DiskWeights(paths)
        try:
            outcome = self.put(key, files, form(source), should_stop)
            if outcome is PutOutcome.DONE:
                source.drop_cached()  # else the weights are in memory twice
            return outcome
        finally:
            source.close()

    def put(
        self,
        key: str,
        files: Sequence[RemoteFile],
        source: WeightSource,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> PutOutcome:
        """Copy a model to the tier, evicting unmapped images, least recently used first.

        Asks `should_stop` before each chunk.
        """
        if self._folder is None:
            return PutOutcome.OFF
        path = self._folder.image_path(key, files)
        try:
            with self._folder.changing():
                partial = self._create_partial(self._folder, key, path, image_bytes(source.layout))
            if isinstance(partial, PutOutcome):
                return partial
            return self._write(path, partial, source, should_stop)
        except (OSError, ModelInvalid) as error:
            logger.warning("model not copied to host", extra={"key": key, "error": error})
            return PutOutcome.FAILED
        finally:
            self._refresh()

    def discard(self, key: str) -> None:
        """Delete a model's unmapped images; raises OSError."""
        if self._folder is None:
            return
        with suppress(FileNotFoundError), self._folder.changing():  # the folder may be gone
            _delete_images(self._folder, key)
        self._refresh()

    def close(self) -> None:
        """Stop copying and leave the folder."""
        self._closing.set()
        if self._folder is not None:
            self._folder.leave()

    # Writing

    def _create_partial(
        self, folder: HostFolder, key: str, path: Path, size_bytes: int
    ) -> int | PutOutcome:
        """A locked file of the whole size under the partial name; raises OSError."""
        if path.exists():
            return PutOutcome.THERE
        _delete_unfinished(folder)
        _delete_images(folder, key)  # made from files that have changed since
        partial = partial_path(path)
        if partial.exists():
            return PutOutcome.UNDER_WAY
        if size_bytes > self.budget_bytes:
            return PutOutcome.NO_ROOM
        while not self._evict_for(folder, size_bytes):
            if not self.on_no_room():
                folder.want_room()
                return PutOutcome.NO_ROOM
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(partial, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Allocate all memory now: a file with holes would kill a reader when memory runs out.
            os.posix_fallocate(descriptor, 0, size_bytes)
        except BaseException:
            os.close(descriptor)
            partial.unlink()
            raise
        return descriptor

    def _write(
        self, path: Path, descriptor: int, source: WeightSource, should_stop: Callable[[], bool]
    ) -> PutOutcome:
        partial = partial_path(path)
        try:
            if not write_image(
                descriptor,
                source,
                lambda: self._closing.is_set() or should_stop(),
                writer_count(len(os.sched_getaffinity(0))),
            ):
                partial.unlink(missing_ok=True)
                return PutOutcome.STOPPED
            os.fchmod(descriptor, 0o400)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            partial.rename(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        return PutOutcome.DONE

    def _evict_for(self, folder: HostFolder, size_bytes: int) -> bool:
        """Delete unmapped images until the size fits into the budget; False if it cannot fit."""
        images = {file.path.name: file for file in folder.files(IMAGE_SUFFIX)}
        partial_bytes = sum(file.size_bytes for file in folder.files(PARTIAL_SUFFIX))
        mapped: set[str] = set()
        while True:
            used = partial_bytes + sum(file.size_bytes for file in images.values())
            idle = [
                Candidate(name, file.size_bytes, file.used_ns)
                for name, file in images.items()
                if name not in mapped
            ]
            victims = lru(idle, used + size_bytes - self.budget_bytes)
            if victims is None:
                return False
            if not victims.keys:
                return True
            for name in victims.keys:
                if delete_if_free(images[name].path):
                    EVICTIONS.labels(tier="host", reason="budget").inc()
                    file = images.pop(name)
                    extra = {"key": file.key, "reason": "budget", "freed_bytes": file.size_bytes}
                    logger.info("model evicted from the host tier", extra=extra)
                else:
                    mapped.add(name)


def writer_count(cores: int) -> int:
    """Threads that copy one model: a quarter of the cores, which inference uses, too."""
    return max(1, min(MAX_WRITERS, cores // 4))


def enter_host_tier(path: Path, budget_bytes: int) -> HostTier:
    """The tier in a folder; off, with a warning in the log, if the folder cannot be used."""
    if budget_bytes == 0:
        return HostTier(None, 0)
    try:
        return HostTier(HostFolder(path, budget_bytes), budget_bytes)
    except HostFolderUnusable as error:
        logger.warning("host tier is off", extra={"error": error})
        return HostTier(None, 0)


def _delete_unfinished(folder: HostFolder) -> None:
    """Delete partial images of killed pods, which no process has locked."""
    for file in folder.files(PARTIAL_SUFFIX):
        if delete_if_free(file.path):
            logger.info("unfinished copy deleted", extra={"path": file.path})


def _delete_images(folder: HostFolder, key: str) -> None:
    for file in folder.files(IMAGE_SUFFIX):
        if file.key == key:
            delete_if_free(file.path)
