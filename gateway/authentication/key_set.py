"""An issuer's public keys (JWKS, RFC 7517): read, kept, and read again when they rotate.

Reading is done in a thread. A token that names an unknown key causes one new reading, at most
every few seconds whatever tokens come; a reading that fails leaves the keys as they were.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import orjson
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt import PyJWK, PyJWTError

from gateway.errors import InvalidToken, NotReady

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

AGAIN_S: Final = 5.0
"""Least time between two readings that unknown keys cause."""
LIFE_S: Final = 300.0
"""The keys are read again this often at least: a key that was taken back must go."""
TIMEOUT_S: Final = 5.0
MOST_BYTES: Final = 1 << 20
LEAST_RSA_BITS: Final = 2048
"""RFC 7518, section 3.3."""
_OF_CURVE: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}
_RSA: Final = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))

Key = tuple[PyJWK, frozenset[str]]
"""A public key, and the algorithms it is for."""


class KeySet:
    """The keys at one place."""

    def __init__(
        self,
        location: str,
        on_change: Callable[[], None],
        *,
        read: Callable[[str], bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._location = location
        self._on_change = on_change
        self._read = read or read_document
        self._clock = clock
        self._document = b""
        self._keys: Mapping[str | None, tuple[Key, ...]] = {}
        self._has_read = False
        self._tried_s: float | None = None
        self._reading = asyncio.Lock()

    async def key(self, key_id: str | None, algorithm: str) -> PyJWK:
        """The key that a token names; without a name, the only one there is for its algorithm.

        Raises:
            InvalidToken: there is none.
            NotReady: the keys could not be read yet.
        """
        if not self._has_read or key_id not in self._keys:
            await self._refresh(unless=lambda: self._has_read and key_id in self._keys)
        if not self._has_read:
            raise NotReady("the token issuer's keys cannot be read now", retry_after_s=AGAIN_S)
        fitting = [key for key, algorithms in self._named(key_id) if algorithm in algorithms]
        if len(fitting) != 1:
            problem = "is unknown or not for its algorithm" if key_id else "must be named (kid)"
            raise InvalidToken(f"the token's key {problem}")
        return fitting[0]

    def _named(self, key_id: str | None) -> tuple[Key, ...]:
        if key_id is not None:
            return self._keys.get(key_id, ())
        return tuple(key for keys in self._keys.values() for key in keys)

    async def refresh_when_old(self) -> None:
        """Read the keys again if their time is up."""
        if self._tried_s is None or self._clock() - self._tried_s >= self._wait_s:
            await self._refresh(unless=lambda: False)

    @property
    def _wait_s(self) -> float:
        return LIFE_S if self._has_read else AGAIN_S

    async def _refresh(self, *, unless: Callable[[], bool]) -> None:
        async with self._reading:  # who waited here looks at what the other one read
            is_early = self._tried_s is not None and self._clock() - self._tried_s < AGAIN_S
            if is_early or unless():
                return
            self._tried_s = self._clock()
            try:
                document = await asyncio.to_thread(self._read, self._location)
                if document != self._document or not self._has_read:
                    keys = read_keys(document)
                    self._document, self._keys, self._has_read = document, keys, True
                    self._on_change()
            except (OSError, ValueError, httpx.HTTPError) as error:
                fields = {"location": self._location}
                logger.warning("a token issuer's keys stay as they were", extra=fields,
                               exc_info=error)  # fmt: skip


def read_document(location: str) -> bytes:
    """What is at a URL or in a file. Raises OSError, ValueError, httpx.HTTPError."""
    if location.startswith("/"):
        with Path(location).open("rb") as file:
            return _whole(file.read(MOST_BYTES + 1))
    give_up_s = time.monotonic() + TIMEOUT_S
    received = b""
    with httpx.stream("GET", location, timeout=TIMEOUT_S) as answer:
        answer.raise_for_status()
        if answer.is_redirect:
            raise ValueError("the answer points elsewhere; name the place itself")
        for piece in answer.iter_bytes():
            received += piece
            _whole(received)
            if time.monotonic() > give_up_s:
                raise TimeoutError(f"the keys took longer than {TIMEOUT_S:g} s")
    return received


def _whole(document: bytes) -> bytes:
    if len(document) > MOST_BYTES:
        raise ValueError(f"keys may have {MOST_BYTES} bytes at most")
    return document


def read_keys(document: bytes) -> dict[str | None, tuple[Key, ...]]:
    """The usable keys of a JWKS by their names. Raises ValueError where it is none.

    Keys of other uses and kinds are passed over, as RFC 7517, section 5, wants it.
    """
    try:
        entries = orjson.loads(document)["keys"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"must be a JSON Web Key Set: {error!r}") from None
    if not isinstance(entries, list):
        raise ValueError(f"'keys' must be a list, was {entries!r:.100}")
    keys: dict[str | None, tuple[Key, ...]] = {}
    for entry in entries:
        algorithms = _algorithms_of(entry)
        key = _usable(entry, min(algorithms)) if algorithms else None
        if key is not None:
            key_id = entry.get("kid")
            keys[key_id] = (*keys.get(key_id, ()), (key, algorithms))
    return keys


def _algorithms_of(entry: Any) -> frozenset[str]:
    """What a key may verify: by its kind and curve, and by what it says itself."""
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return frozenset()
    if not isinstance(entry.get("kid", ""), str):
        return frozenset()
    kind, curve = entry.get("kty"), entry.get("crv")
    possible: frozenset[str] = frozenset()
    if kind == "RSA":
        possible = _RSA
    elif kind in ("EC", "OKP") and isinstance(curve, str) and curve in _OF_CURVE:
        possible = frozenset((_OF_CURVE[curve],))
    own = entry.get("alg")
    return possible if own is None else possible & frozenset((str(own),))


def _usable(entry: Mapping[str, Any], algorithm: str) -> PyJWK | None:
    try:
        key = PyJWK(dict(entry), algorithm)
    except (PyJWTError, ValueError, TypeError, KeyError) as error:
        logger.warning("a key cannot be read", extra={"kid": entry.get("kid")}, exc_info=error)
        return None
    if isinstance(key.key, rsa.RSAPublicKey) and key.key.key_size < LEAST_RSA_BITS:
        logger.warning("a key is too short", extra={"kid": entry.get("kid")})
        return None
    is_private = "d" in entry
    if is_private:
        logger.warning("a private key was published, and is no key any more",
                       extra={"kid": entry.get("kid")})  # fmt: skip
    return None if is_private else key
