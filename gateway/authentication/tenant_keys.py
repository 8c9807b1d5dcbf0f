"""API keys: who may ask for the models of which tenant.

One file per tenant in a folder, named like its namespace, a key per line: a mounted Secret. The
file `_operator` holds the keys for metrics and explanations, which tell of all tenants. Keys are
compared by their digests, in constant time.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from typing import TYPE_CHECKING, Final

from gateway.authentication.tenant_files import RELOAD_S, files_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


logger = logging.getLogger(__name__)

SHORTEST: Final = 16


class TenantKeys:
    """The keys of all tenants, read again from time to time."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError, or ValueError where a key is too short to be one."""
        self._folder = folder
        self._digests = read_keys(folder)

    async def follow(self) -> None:
        """Read the folder again every few seconds; a mistake in it leaves the keys as they were."""
        while True:
            await asyncio.sleep(RELOAD_S)
            try:
                self._digests = await asyncio.to_thread(read_keys, self._folder)
            except (OSError, ValueError) as error:
                logger.warning("the API keys stay as they were", exc_info=error)

    def has(self, namespace: str, key: bytes) -> bool:
        """Whether it is one of the tenant's keys."""
        digest = hashlib.sha256(key).digest()
        matches = [hmac.compare_digest(digest, each) for each in self._digests.get(namespace, ())]
        return any(matches)


def read_keys(folder: Path) -> Mapping[str, Sequence[bytes]]:
    """Digests of the keys by tenant. Raises OSError, ValueError."""
    found: dict[str, list[bytes]] = {}
    for file in files_of(folder):
        keys = [line.strip() for line in file.read_bytes().splitlines() if line.strip()]
        if any(len(key) < SHORTEST for key in keys):
            raise ValueError(f"{file}: a key must have {SHORTEST} bytes or more; make them random")
        found[file.name] = [hashlib.sha256(key).digest() for key in keys]
    return found
