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

from gateway.errors import Unauthorized

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gateway.headers import Headers

logger = logging.getLogger(__name__)

RELOAD_S = 2.0
"""A mounted Secret changes without a word."""
OPERATOR: Final = "_operator"
SHORTEST: Final = 16
_CARRIERS: Final = frozenset((b"authorization", b"x-api-key"))
_BEARER: Final = b"bearer "
_FREE: Final = frozenset(("/", "/healthz", "/readyz", "/v2", "/v2/health/live", "/v2/health/ready"))
_TENANTS: Final = ("/v1/", "/v2/", "/openai/")


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

    def check(self, namespace: str, headers: Headers) -> None:
        """Pass whoever has a key of the tenant. Raises Unauthorized, whatever it was."""
        given = presented_key(headers)
        if given is None:
            raise Unauthorized("an API key is needed: authorization: Bearer KEY, or x-api-key: KEY")
        digest = hashlib.sha256(given).digest()
        matches = [hmac.compare_digest(digest, each) for each in self._digests.get(namespace, ())]
        if not any(matches):
            raise Unauthorized(f"the API key is none of namespace {namespace!r}")

    def check_path(self, path: str, namespace: str, headers: Headers) -> None:
        """As `check`, for what is no inference: health is free, metrics are the operator's."""
        if path not in _FREE:
            self.check(namespace if path.startswith(_TENANTS) else OPERATOR, headers)


def read_keys(folder: Path) -> Mapping[str, Sequence[bytes]]:
    """Digests of the keys by tenant. Raises OSError, ValueError."""
    found: dict[str, list[bytes]] = {}
    for file in sorted(folder.iterdir()):
        if file.name.startswith(".") or not file.is_file():
            continue  # how a mounted Secret keeps its versions
        keys = [line.strip() for line in file.read_bytes().splitlines() if line.strip()]
        if any(len(key) < SHORTEST for key in keys):
            raise ValueError(f"{file}: a key must have {SHORTEST} bytes or more; make them random")
        found[file.name] = [hashlib.sha256(key).digest() for key in keys]
    return found


def presented_key(headers: Headers) -> bytes | None:
    """The key a request carries."""
    for name, value in headers:
        if name == b"x-api-key":
            return value.strip()
        if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
            return value[len(_BEARER) :].strip()
    return None


def without_keys(headers: Headers) -> Headers:
    """What pods, which serve all tenants, may see of a request's headers."""
    return [pair for pair in headers if pair[0] not in _CARRIERS]
