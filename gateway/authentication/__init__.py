"""Folders with one file per tenant, named like its namespace, and the API keys of such a folder.

They are mounted Secrets and ConfigMaps. A file of keys has one per line.
"""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

OPERATOR: Final = "_operator"
"""File for endpoints that show all tenants' data: metrics, explanations."""
RELOAD_INTERVAL_S: Final = 2.0
"""A mounted volume changes without notice."""
MIN_KEY_BYTES: Final = 16


def files_of(folder: Path) -> list[Path]:
    """The folder's files by name, without hidden files, where a mounted volume keeps its versions.

    Raises OSError.
    """
    return [
        file
        for file in sorted(folder.iterdir())
        if not file.name.startswith(".") and file.is_file()
    ]


async def reread(read: Callable[[], T], previous: T) -> T:
    """A folder's content after the reload interval; the previous if a file is invalid."""
    await asyncio.sleep(RELOAD_INTERVAL_S)
    try:
        return await asyncio.to_thread(read)
    except (OSError, ValueError) as error:
        logger.warning(
            "cannot read tenant files; the previous content stays in use", extra={"error": error}
        )
        return previous


class TenantKeys:
    """Keys by tenant; they are compared by digest, in constant time."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError, ValueError as `read_keys`."""
        self._read = partial(read_keys, folder)
        self._digests = self._read()

    async def reload_periodically(self) -> None:
        while True:
            self._digests = await reread(self._read, self._digests)

    def contains(self, namespace: str, key: bytes) -> bool:
        return _is_among(hashlib.sha256(key).digest(), self._digests.get(namespace, ()))

    def namespaces_of(self, key: bytes) -> list[str]:
        """Those of which it is a key."""
        digest = hashlib.sha256(key).digest()
        return [each for each, digests in self._digests.items() if _is_among(digest, digests)]


def _is_among(digest: bytes, digests: Sequence[bytes]) -> bool:
    matches = [hmac.compare_digest(digest, each) for each in digests]
    return any(matches)


def read_keys(folder: Path) -> Mapping[str, Sequence[bytes]]:
    """Digests of the keys by tenant. Raises OSError, or ValueError if a key is too short."""
    found: dict[str, list[bytes]] = {}
    for file in files_of(folder):
        keys = [line.strip() for line in file.read_bytes().splitlines() if line.strip()]
        if any(len(key) < MIN_KEY_BYTES for key in keys):
            raise ValueError(
                f"{file}: a key must have {MIN_KEY_BYTES} bytes or more; make them random"
            )
        found[file.name] = [hashlib.sha256(key).digest() for key in keys]
    return found
