"""Folders for sockets: short, as a socket's path may have 107 bytes and that of --home has more.

Each holds a lock for as long as the process that made it runs, however that ends. Who makes one
removes those whose lock is free, which a killed process has left.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "pilotlight-"
_LOCK: Final = "in-use"


@contextmanager
def socket_folder() -> Iterator[Path]:
    """A folder of this user's alone, until the context or the process ends."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The lock gets its name once it is held, so that nobody finds a free one."""
    aside = folder / f"{_LOCK}.new"
    descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        aside.rename(folder / _LOCK)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # without a lock it is something else; another start removes it
            if folder.lstat().st_uid == os.getuid() and not _is_in_use(folder):
                shutil.rmtree(folder)


def _is_in_use(folder: Path) -> bool:
    """Raises OSError for a folder without a lock."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
