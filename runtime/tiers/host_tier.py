"""Tier `host`: weights in the node's memory, one file per model, mapped by all pods of the node.

A file is written aside under a lock, complete and read-only before it gets its name, never changed
afterwards, and deleted only while nobody has it mapped. The locks are of the kernel, so those of a
killed pod are gone. Methods block and are called in threads, but for those that say otherwise.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from runtime.errors import ModelInvalid
from runtime.metrics import EVICTIONS
from runtime.tiers.eviction import Candidate, lru
from runtime.tiers.file_names import key_of, name_of
from runtime.tiers.host_folder import HostFolder, HostFolderUnusable, lock_if_free
from runtime.tiers.host_image import HostImage, ImageSpoiled, image_bytes, write_image

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runtime.storage.listing import RemoteFile
    from runtime.weights.weight_source import WeightSource

logger = logging.getLogger(__name__)

IMAGE = ".slab"
PARTIAL = ".part"


class PutOutcome(StrEnum):
    """What became of a model that was to be put into the tier."""

    DONE = "done"
    THERE = "there"
    UNDER_WAY = "under-way"
    """Another pod of the node is copying it."""
    NO_ROOM = "no-room"
    """The budget has no room even without all that nobody has mapped."""
    FAILED = "failed"
    STOPPED = "stopped"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file of the tier."""

    path: Path
    key: str
    size_bytes: int
    used_ns: int


class HostTier:
    """The tier as one pod sees it."""

    def __init__(self, folder: HostFolder | None, budget_bytes: int) -> None:
        self._folder = folder
        self.budget_bytes = budget_bytes if folder else 0
        self._closing = threading.Event()
        self._bytes: dict[str, int] = {}
        """Per model: bytes of its image, as last seen. Replaced whole, so any thread may read."""
        self._changed: set[str] = set()
        self._looking = threading.Lock()
        if folder is not None:
            with folder.changing():
                self._sweep_partial()
            self._look()

    @property
    def is_on(self) -> bool:
        """Whether there is such a tier at this pod."""
        return self._folder is not None

    # What is there, as last seen; these do not block

    def keys(self) -> set[str]:
        """Models of which an image is there."""
        return set(self._bytes)

    def bytes_of(self, key: str) -> int:
        """Bytes of a model's image; 0 where there is none."""
        return self._bytes.get(key, 0)

    def used_bytes(self) -> int:
        """Bytes of all images of the node."""
        return sum(self._bytes.values())

    def changes(self) -> set[str]:
        """The models that came or went since the last call, whichever pod of the node did it."""
        self._look()
        with self._looking:
            changed, self._changed = self._changed, set()
        return changed

    def _look(self) -> None:
        if self._folder is None:
            return
        with self._looking:
            before = self._bytes
            try:
                self._bytes = {entry.key: entry.size_bytes for entry in self._entries(IMAGE)}
            except OSError as error:  # the next look may see more
                logger.warning("tier host not looked at", extra={"error": error})
            self._changed |= {key for key, _ in before.items() ^ self._bytes.items()}

    # Use

    def open(self, key: str, files: Sequence[RemoteFile]) -> HostImage | None:
        """The image made of these files, safe from deletion until it is closed and unmapped."""
        if self._folder is None:
            return None
        path = self._path(key, files)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            if not lock_if_free(descriptor, fcntl.LOCK_SH) or not os.fstat(descriptor).st_nlink:
                raise FileNotFoundError(f"{path} is being deleted")
            image = HostImage(descriptor, path.name)
            os.utime(descriptor)
        except (ImageSpoiled, ValueError, TypeError, KeyError) as error:
            os.close(descriptor)
            self._drop_spoiled(key, path, error)
            return None
        except OSError as error:
            os.close(descriptor)
            logger.debug("host image not opened", extra={"key": key, "error": error})
            return None
        return image

    def put(self, key: str, files: Sequence[RemoteFile], source: WeightSource) -> PutOutcome:
        """Copy a model into the tier, evicting what nobody has mapped, the oldest first."""
        if self._folder is None:
            return PutOutcome.OFF
        path = self._path(key, files)
        try:
            with self._folder.changing():
                partial = self._begin(path, image_bytes(source.layout))
            if isinstance(partial, PutOutcome):
                return partial
            return self._fill(path, partial, source)
        except (OSError, ModelInvalid) as error:
            logger.warning("model not copied to host", extra={"key": key, "error": error})
            return PutOutcome.FAILED
        finally:
            self._look()

    def discard(self, key: str) -> None:
        """Delete a model's images that nobody has mapped; raises OSError."""
        if self._folder is None:
            return
        with suppress(FileNotFoundError), self._folder.changing():  # the folder may be gone
            for entry in self._entries(IMAGE):
                if entry.key == key:
                    _delete_if_free(entry.path)
        self._look()

    def close(self) -> None:
        """Stop copying and leave the folder; the last pod of the node clears it."""
        self._closing.set()
        if self._folder is not None:
            self._folder.leave()

    # Putting

    def _begin(self, path: Path, size_bytes: int) -> int | PutOutcome:
        """A locked file of the whole size under the name for partial ones; raises OSError."""
        if path.exists():
            return PutOutcome.THERE
        self._sweep_partial()
        for entry in self._entries(IMAGE):
            if entry.key == _key_of(path):  # made of files that have changed since
                _delete_if_free(entry.path)
        partial = _partial(path)
        if partial.exists():
            return PutOutcome.UNDER_WAY
        if not self._make_room(size_bytes):
            return PutOutcome.NO_ROOM
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(partial, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # All memory now: a file with holes would kill a reader when the memory runs out.
            os.posix_fallocate(descriptor, 0, size_bytes)
        except BaseException:
            os.close(descriptor)
            partial.unlink()
            raise
        return descriptor

    def _fill(self, path: Path, descriptor: int, source: WeightSource) -> PutOutcome:
        partial = _partial(path)
        try:
            if not write_image(descriptor, source, self._closing.is_set):
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

    def _make_room(self, size_bytes: int) -> bool:
        """Delete what nobody has mapped until the size fits into the budget."""
        if size_bytes > self.budget_bytes:
            return False
        entries = {entry.path.name: entry for entry in self._entries(IMAGE)}
        partial_bytes = sum(entry.size_bytes for entry in self._entries(PARTIAL))
        mapped: set[str] = set()
        while True:
            used = partial_bytes + sum(entry.size_bytes for entry in entries.values())
            idle = [
                Candidate(name, entry.size_bytes, entry.used_ns)
                for name, entry in entries.items()
                if name not in mapped
            ]
            chosen = lru(idle, used + size_bytes - self.budget_bytes)
            if chosen is None:
                return False
            if not chosen.keys:
                return True
            for name in chosen.keys:
                if _delete_if_free(entries[name].path):
                    _count_eviction(entries.pop(name))
                else:
                    mapped.add(name)

    def _sweep_partial(self) -> None:
        """Delete what a killed pod had not finished: nobody holds its lock."""
        for entry in self._entries(PARTIAL):
            if _delete_if_free(entry.path):
                logger.info("unfinished copy deleted", extra={"path": entry.path})

    def _drop_spoiled(self, key: str, path: Path, error: Exception) -> None:
        logger.warning("host image spoiled, deleted", extra={"key": key, "error": error})
        path.unlink(missing_ok=True)  # who has it mapped keeps what he has
        self._look()

    def _entries(self, ending: str) -> list[_Entry]:
        assert self._folder is not None
        found = []
        for path in self._folder.path.glob(f"*{ending}"):
            key = _key_of(path)
            if key is None:
                continue
            with suppress(FileNotFoundError):
                facts = path.stat()
                found.append(_Entry(path, key, facts.st_size, facts.st_mtime_ns))
        return found

    def _path(self, key: str, files: Sequence[RemoteFile]) -> Path:
        """The name says which contents the image was made of, so that it never outlives them."""
        assert self._folder is not None
        rows = sorted((file.path, file.size_bytes, file.version) for file in files)
        digest = hashlib.sha256(repr(rows).encode()).hexdigest()[:16]
        return self._folder.path / f"{name_of(key)}.{digest}{IMAGE}"


def enter_host_tier(path: Path, budget_bytes: int) -> HostTier:
    """The tier in a folder; switched off, with a line in the log, where that cannot be used."""
    if budget_bytes == 0:
        return HostTier(None, 0)
    try:
        return HostTier(HostFolder(path, budget_bytes), budget_bytes)
    except HostFolderUnusable as error:
        logger.warning("tier host is off", extra={"error": error})
        return HostTier(None, 0)


def _key_of(path: Path) -> str | None:
    return key_of(path.name.removesuffix(PARTIAL).rsplit(".", 2)[0])


def _partial(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)


def _delete_if_free(path: Path) -> bool:
    """Delete a file unless somebody has it locked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        if not lock_if_free(descriptor, fcntl.LOCK_EX):
            return False
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
    return True


def _count_eviction(entry: _Entry) -> None:
    EVICTIONS.labels(tier="host", reason="budget").inc()
    logger.info(
        "model left the host tier",
        extra={"key": entry.key, "reason": "budget", "freed_bytes": entry.size_bytes},
    )
