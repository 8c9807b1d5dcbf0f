"""API keys of tenants.

The folder has one file per tenant with a key per line, a mounted Secret. The file `_operator` holds
the keys for metrics and explanations, which show all tenants' data. Keys are compared by digest, in
constant time.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final

from gateway.authentication.tenant_files import files_of, wait_and_reload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MIN_KEY_BYTES: Final = 16


class TenantKeys:
    def __init__(self, folder: Path) -> None:
        """Raises OSError, ValueError as `read_keys`."""
        self._folder = folder
        self._digests = read_keys(folder)

    async def reload_periodically(self) -> None:
        while True:
            await wait_and_reload(read_keys, self._folder, self._set_digests)

    def _set_digests(self, digests: Mapping[str, Sequence[bytes]]) -> None:
        self._digests = digests

    def contains(self, namespace: str, key: bytes) -> bool:
        digest = hashlib.sha256(key).digest()
        matches = [hmac.compare_digest(digest, each) for each in self._digests.get(namespace, ())]
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
