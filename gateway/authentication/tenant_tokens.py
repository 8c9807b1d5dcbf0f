"""Tokens of identity providers (JWT, RFC 7519): which tenants a token is good for.

A token is verified once and remembered until it expires, the trusted issuers change or their keys
do. Verifying takes about a fifth of a millisecond and is done on the loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import jwt

from gateway.authentication.issuers import read_issuers
from gateway.authentication.key_set import KeySet
from gateway.authentication.tenant_files import RELOAD_S
from gateway.errors import Forbidden, GatewayError, InvalidToken

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gateway.authentication.issuers import TrustedIssuer

logger = logging.getLogger(__name__)

MOST_BYTES: Final = 8192
MOST_REMEMBERED: Final = 4096
_DOTS: Final = 2
_BROKEN: Final = (
    jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""What PyJWT raises at bad input: JSON inside a token may hold anything."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What a token is good for."""

    tenants: frozenset[str]
    until_s: float
    """Seconds since the epoch, the clock skew that is allowed included."""


class TenantTokens:
    """The trusted issuers of all tenants, their keys, and the tokens seen."""

    def __init__(
        self, folder: Path, *, leeway_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        """Raises OSError, or ValueError where the folder holds a mistake."""
        self._folder = folder
        self._leeway_s = leeway_s
        self._clock = clock
        self._seen: OrderedDict[bytes, Verified] = OrderedDict()
        self._changes = 0
        self._key_sets: dict[str, KeySet] = {}
        self._issuers: Sequence[TrustedIssuer] = ()
        self._use(read_issuers(folder))

    def _use(self, issuers: Sequence[TrustedIssuer]) -> None:
        if list(issuers) == list(self._issuers):
            return
        self._issuers = sorted(issuers, key=lambda each: (each.jwks, each.tenant))
        kept = self._key_sets
        self._key_sets = {
            place: kept.get(place) or KeySet(place, self._forget)
            for place in {each.jwks for each in issuers}
        }
        self._forget()

    def _forget(self) -> None:
        self._changes += 1
        self._seen.clear()

    async def follow(self) -> None:
        """Keep issuers and keys fresh; a mistake leaves them as they were."""
        while True:
            async with asyncio.TaskGroup() as reading:
                for key_set in self._key_sets.values():
                    reading.create_task(key_set.refresh_when_old())
            await asyncio.sleep(RELOAD_S)
            try:
                self._use(await asyncio.to_thread(read_issuers, self._folder))
            except (OSError, ValueError) as error:
                logger.warning("the trusted issuers stay as they were", exc_info=error)

    async def check(self, namespace: str, token: bytes) -> None:
        """Pass whoever has a token for the tenant.

        Raises:
            InvalidToken: the token is good for nobody.
            Forbidden: it is good, for others.
            NotReady: its issuer's keys could not be read yet.
        """
        digest = hashlib.sha256(token).digest()
        verified = self._seen.get(digest)
        if verified is None or verified.until_s <= self._clock():
            changes = self._changes
            verified = await self._verify(token)
            if changes == self._changes:  # else it rests on what may hold no more
                self._remember(digest, verified)
        if namespace not in verified.tenants:
            raise Forbidden("the token is not for the tenant whose model or place was asked for")

    def _remember(self, digest: bytes, verified: Verified) -> None:
        self._seen[digest] = verified
        if len(self._seen) > MOST_REMEMBERED:
            self._seen.popitem(last=False)

    async def _verify(self, token: bytes) -> Verified:
        text, header, issuer = _look_into(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
            raise InvalidToken("the token's alg and kid must be texts")
        trusted = [each for each in self._issuers if each.issuer == issuer]
        if not trusted:
            raise InvalidToken("the token's issuer is not trusted here")
        fitting = [each for each in trusted if algorithm in each.algorithms]
        if not fitting:
            raise InvalidToken(f"the token's algorithm {algorithm[:20]!r} is not trusted here")
        return await self._judge(text, key_id, algorithm, fitting)

    async def _judge(
        self, text: str, key_id: str | None, algorithm: str, fitting: Sequence[TrustedIssuer]
    ) -> Verified:
        """Verify against the keys of each who may have issued it."""
        key_sets = self._key_sets
        tenants: set[str] = set()
        until_s = 0.0
        refusal: GatewayError | None = None
        for place, group in groupby(fitting, key=lambda each: each.jwks):
            try:
                key = await key_sets[place].key(key_id, algorithm)
                claims, until_s = self._claims(text, key, algorithm)
            except GatewayError as error:
                refusal = error
                continue
            tenants |= {each.tenant for each in group if each.accepts(claims)}
        if tenants:
            return Verified(frozenset(tenants), until_s)
        raise refusal or InvalidToken("the token's audience or claims are none that are trusted")

    def _claims(self, text: str, key: jwt.PyJWK, algorithm: str) -> tuple[Mapping[str, Any], float]:
        """The verified claims, and until when they hold."""
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                key.key,
                algorithms=[algorithm],
                leeway=self._leeway_s,
                options={"require": ["exp", "iss", "aud"], "verify_aud": False},
            )
            until_s = float(claims["exp"]) + self._leeway_s
        except _BROKEN as error:
            raise InvalidToken(f"the token is not valid: {_told(error)}") from None
        return claims, until_s


def looks_like_token(text: bytes) -> bool:
    """Whether it has a token's three parts."""
    return text.count(b".") == _DOTS


def _look_into(token: bytes) -> tuple[str, dict[str, Any], object]:
    """The token as text, its header and its issuer, all unverified. Raises InvalidToken."""
    if len(token) > MOST_BYTES:
        raise InvalidToken(f"a token may have {MOST_BYTES} bytes, this one has {len(token)}")
    try:
        text = token.decode("ascii")
        header = jwt.get_unverified_header(text)
        issuer = jwt.decode(text, options={"verify_signature": False}).get("iss")
    except _BROKEN as error:
        raise InvalidToken(f"the token cannot be read: {_told(error)}") from None
    if "crit" in header or "b64" in header:
        raise InvalidToken("the token asks for extensions (crit) that are not known here")
    return text, header, issuer


def _told(error: Exception) -> str:
    """What PyJWT says, without what others may have put into it."""
    return str(error)[:200] if isinstance(error, jwt.PyJWTError) else type(error).__name__
