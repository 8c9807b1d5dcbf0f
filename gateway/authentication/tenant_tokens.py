"""Tokens of identity providers (JWT, RFC 7519) and the tenants that they are valid for.

A token is verified once and cached until it expires or the trusted issuers or their keys change.
Verification takes about a fifth of a millisecond and runs on the event loop.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import jwt

from gateway.authentication.issuers import KeySet, TrustedIssuer, read_issuers
from gateway.authentication.tenant_files import reread
from gateway.errors import Forbidden, GatewayError, InvalidToken

LEEWAY_S: Final = 30.0
"""Accepted difference between the clocks of issuers and this one; machines with NTP differ less."""
MAX_TOKEN_BYTES: Final = 8192
MAX_CACHED: Final = 4096
_DOTS: Final = 2
_PYJWT_ERRORS: Final = (
    jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""Raised by PyJWT for invalid input: JSON inside a token may have any type."""


class VerifiedToken(NamedTuple):
    tenants: frozenset[str]
    expires_s: float
    """Seconds since the epoch, the accepted clock difference included."""


class TenantTokens:
    """The trusted issuers of all tenants, their keys, and the verified tokens."""

    def __init__(
        self, folder: Path, *, leeway_s: float = LEEWAY_S, clock: Callable[[], float] = time.time
    ) -> None:
        """Raises OSError, ValueError as `read_issuers`."""
        self._folder = folder
        self._leeway_s = leeway_s
        self._clock = clock
        self._cache: OrderedDict[bytes, VerifiedToken] = OrderedDict()
        self._cache_clears = 0
        self._key_sets: dict[str, KeySet] = {}
        self._issuers: list[TrustedIssuer] = []
        self._set_issuers(read_issuers(folder))

    def _set_issuers(self, issuers: list[TrustedIssuer]) -> None:
        issuers = sorted(issuers, key=lambda each: (each.jwks, each.tenant))
        if issuers == self._issuers:
            return
        self._issuers = issuers
        previous = self._key_sets
        self._key_sets = {
            location: previous.get(location) or KeySet(location, self._clear_cache)
            for location in {each.jwks for each in issuers}
        }
        self._clear_cache()

    def _clear_cache(self) -> None:
        self._cache_clears += 1
        self._cache.clear()

    async def reload_periodically(self) -> None:
        while True:
            async with asyncio.TaskGroup() as group:
                for key_set in self._key_sets.values():
                    group.create_task(key_set.refresh_if_old())
            self._set_issuers(await reread(read_issuers, self._folder, self._issuers))

    async def check(self, namespace: str, token: bytes) -> None:
        """Check that a token is valid for the tenant.

        Raises:
            InvalidToken: the token is not valid for any tenant.
            Forbidden: it is valid for other tenants.
            NotReady: its issuer's keys could not be read yet.
        """
        if namespace not in await self.namespaces_of(token):
            raise Forbidden("the token is not valid for the tenant of the requested model or path")

    async def namespaces_of(self, token: bytes) -> frozenset[str]:
        """Those that it is valid for. Raises InvalidToken, NotReady."""
        digest = hashlib.sha256(token).digest()
        verified = self._cache.get(digest)
        if verified is None or verified.expires_s <= self._clock():
            cache_clears = self._cache_clears
            verified = await self._verify(token)
            if cache_clears == self._cache_clears:  # else issuers or keys have changed meanwhile
                self._add_to_cache(digest, verified)
        return verified.tenants

    def knows(self, token: bytes) -> bool:
        """Whether it has been verified, and is valid still."""
        verified = self._cache.get(hashlib.sha256(token).digest())
        return verified is not None and verified.expires_s > self._clock()

    def _add_to_cache(self, digest: bytes, verified: VerifiedToken) -> None:
        self._cache[digest] = verified
        if len(self._cache) > MAX_CACHED:
            self._cache.popitem(last=False)

    async def _verify(self, token: bytes) -> VerifiedToken:
        text, header, issuer = _read_unverified(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
            raise InvalidToken("the token's alg and kid must be strings")
        trusted = [each for each in self._issuers if each.issuer == issuer]
        if not trusted:
            raise InvalidToken("the token's issuer is not trusted")
        candidates = [each for each in trusted if algorithm in each.algorithms]
        if not candidates:
            raise InvalidToken(f"the token's algorithm {algorithm[:20]!r} is not trusted")
        return await self._verify_with(candidates, text, key_id, algorithm)

    async def _verify_with(
        self, candidates: Sequence[TrustedIssuer], text: str, key_id: str | None, algorithm: str
    ) -> VerifiedToken:
        """Verify against the keys of each possible issuer."""
        key_sets = self._key_sets
        tenants: set[str] = set()
        expires_s = 0.0
        refusal: GatewayError | None = None
        for location, issuers in groupby(candidates, key=lambda each: each.jwks):
            try:
                key = await key_sets[location].key(key_id, algorithm)
                claims, expires_s = self._claims(text, key, algorithm)
            except GatewayError as error:
                refusal = error
                continue
            tenants |= {each.tenant for each in issuers if each.accepts(claims)}
        if tenants:
            return VerifiedToken(frozenset(tenants), expires_s)
        try:
            raise refusal or InvalidToken(
                "no trusted issuer accepts the token's audience and claims"
            )
        finally:
            del refusal  # kept in a frame of its traceback it would be a cycle

    def _claims(self, text: str, key: jwt.PyJWK, algorithm: str) -> tuple[Mapping[str, Any], float]:
        """The verified claims and their expiry. Raises InvalidToken."""
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                key.key,
                algorithms=[algorithm],
                leeway=self._leeway_s,
                options={"require": ["exp", "iss", "aud"], "verify_aud": False},
            )
            expires_s = float(claims["exp"]) + self._leeway_s
        except _PYJWT_ERRORS as error:
            raise InvalidToken(f"the token is not valid: {_detail(error)}") from None
        return claims, expires_s


def looks_like_token(text: bytes) -> bool:
    """True if it has a token's three parts."""
    return text.count(b".") == _DOTS


def _read_unverified(token: bytes) -> tuple[str, dict[str, Any], object]:
    """The token as text, its header and its issuer, all unverified. Raises InvalidToken."""
    if len(token) > MAX_TOKEN_BYTES:
        raise InvalidToken(f"a token may have up to {MAX_TOKEN_BYTES} bytes, was {len(token)}")
    try:
        text = token.decode("ascii")
        header = jwt.get_unverified_header(text)
        issuer = jwt.decode(text, options={"verify_signature": False}).get("iss")
    except _PYJWT_ERRORS as error:
        raise InvalidToken(f"the token cannot be read: {_detail(error)}") from None
    if "crit" in header or "b64" in header:
        raise InvalidToken("the token requires extensions (crit) that are not supported")
    return text, header, issuer


def _detail(error: Exception) -> str:
    """PyJWT's message, or only the class of other errors, whose text a token could contain."""
    return str(error)[:200] if isinstance(error, jwt.PyJWTError) else type(error).__name__
