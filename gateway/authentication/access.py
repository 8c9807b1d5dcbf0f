"""Authorisation of requests by tenant, with API keys and tokens (JWT, RFC 7519).

A token is verified once and cached until it expires or the trusted issuers or their keys change.
Verification takes about a fifth of a millisecond and runs on the event loop.
"""

import asyncio
import base64
import binascii
import contextlib
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import jwt

from common.http_headers import Headers
from common.pod_secret import PodSecret
from gateway.authentication import OPERATOR, TenantKeys, reread
from gateway.authentication.issuers import Issuer, KeySet, read_all_issuers, way_to_token
from gateway.errors import (
    Forbidden,
    GatewayError,
    InvalidToken,
    NotReady,
    SignInNeeded,
    Unauthorized,
)
from registry.domain.model import ModelName

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
        self,
        read: Callable[[], Sequence[Issuer]],
        *,
        leeway_s: float = LEEWAY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises what `read` does: OSError, ValueError."""
        self._read = read
        self._leeway_s = leeway_s
        self._clock = clock
        self._cache: OrderedDict[bytes, VerifiedToken] = OrderedDict()
        self._cache_clears = 0
        self._key_sets: dict[str, KeySet] = {}
        self._issuers: Sequence[Issuer] = []
        self._set_issuers(read())

    def _set_issuers(self, issuers: Sequence[Issuer]) -> None:
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
            self._set_issuers(await reread(self._read, self._issuers))

    async def namespaces_of(self, token: bytes) -> frozenset[str]:
        """Those that it is valid for.

        Raises InvalidToken, or NotReady if its issuer's keys could not be read yet.
        """
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
        trusted = [each for each in self._issuers if issuer and each.issuer == issuer]
        if not trusted and all(each.issuer for each in self._issuers):
            raise InvalidToken("the token's issuer is not trusted")
        if not trusted:
            raise NotReady("the controller has not read the cluster's token issuer: see its log")
        candidates = [each for each in trusted if algorithm in each.algorithms]
        if not candidates:
            raise InvalidToken(f"the token's algorithm {algorithm[:20]!r} is not trusted")
        return await self._verify_with(candidates, text, key_id, algorithm)

    async def _verify_with(
        self, candidates: Sequence[Issuer], text: str, key_id: str | None, algorithm: str
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
            tenants.update(*(each.tenants_of(claims) for each in issuers))
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


DEFAULT_NAMESPACE: Final = "default"
_CREDENTIAL_HEADERS: Final = frozenset((b"authorization", b"x-api-key"))
_BEARER: Final = b"bearer "
_BASIC: Final = b"basic "
_OPERATOR_NAMES: Final = ("", "operator", OPERATOR)
_PUBLIC_PATHS: Final = frozenset(
    ("/", "/healthz", "/readyz", "/v2", "/v2/", "/v2/health/live", "/v2/health/ready")
)
_TENANT_PREFIXES: Final = ("/v1/", "/v2/", "/openai/")

_PREFIX: Final = b"pilotlight-callback"
"""Beyond the request's deadline: clocks of gateways may differ."""


class Access:
    """Checks credentials by tenant. Results do not reveal whether a model exists."""

    def __init__(
        self, keys: TenantKeys | None, tokens: TenantTokens | None, way: Callable[[str], str]
    ) -> None:
        """`way`: how to get a credential of a tenant, the end of an error; it may be empty."""
        self._keys = keys
        self._tokens = tokens
        self._way = way
        accepted = []
        if tokens is not None:
            accepted.append("a token (authorization: Bearer TOKEN)")
        if keys is not None:
            accepted.append("an API key (authorization: Bearer KEY, or x-api-key: KEY)")
        self._accepted = " or ".join(accepted)

    async def reload_periodically(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self._keys is not None:
                group.create_task(self._keys.reload_periodically())
            if self._tokens is not None:
                group.create_task(self._tokens.reload_periodically())

    async def check(self, namespace: str, headers: Headers) -> None:
        """Check that the headers authorise requests to the tenant's models.

        Raises Unauthorized, Forbidden, NotReady.
        """
        given = credential(headers)
        _refuse_other_sites(headers)
        if given is not None and self._keys is not None and self._keys.contains(namespace, given):
            return
        if given is None or self._tokens is None or not looks_like_token(given):
            raise Unauthorized(
                f"{self._accepted} of namespace {namespace!r} is needed{self._way(namespace)}"
            )
        try:
            found = await self._tokens.namespaces_of(given)
        except InvalidToken as error:
            raise InvalidToken(f"{error}{self._way(namespace)}") from None
        if namespace not in found:
            raise Forbidden("the token is not valid for the tenant of the requested model or path")

    def knows(self, headers: Headers) -> bool:
        """Whether these methods answer at once: no token is to be verified."""
        given = credential(headers)
        if given is None or self._tokens is None or not looks_like_token(given):
            return True
        return self._tokens.knows(given)

    async def is_allowed(self, namespace: str, headers: Headers) -> bool:
        """As `check`, as a boolean. Raises NotReady."""
        try:
            await self.check(namespace, headers)
        except (Unauthorized, Forbidden):
            return False
        return True

    async def implied_namespace(self, headers: Headers) -> str:
        """The namespace of a path that names none: the credential's, where it is of exactly one.

        `default` for every other credential, and without any. Raises NotReady.
        """
        found = await self._namespaces_of(headers) - {OPERATOR}
        return found.pop() if len(found) == 1 else DEFAULT_NAMESPACE

    async def viewed_namespaces(self, headers: Headers) -> set[str] | None:
        """Those whose requests may be explained to the client; None for operators: all.

        Raises Unauthorized, Forbidden, NotReady.
        """
        found = await self._namespaces_of(headers)
        if OPERATOR in found or not found:
            await self.check(OPERATOR, headers)
            return None
        _refuse_other_sites(headers)
        return found

    async def _namespaces_of(self, headers: Headers) -> set[str]:
        """Those that the credential is of. Raises NotReady."""
        given = credential(headers)
        if given is None:
            return set()
        found = set() if self._keys is None else set(self._keys.namespaces_of(given))
        if self._tokens is not None and looks_like_token(given):
            with contextlib.suppress(Unauthorized):
                found |= await self._tokens.namespaces_of(given)
        return found

    async def check_path(self, path: str, namespace: str, headers: Headers) -> None:
        """As `check`, for requests that are not inference.

        Health is public; paths of no tenant (metrics) need the operator's credential.
        """
        if path not in _PUBLIC_PATHS:
            await self.check(namespace if path.startswith(_TENANT_PREFIXES) else OPERATOR, headers)

    async def viewer(self, headers: Headers) -> str | None:
        """The namespace whose models a browser may see in the console; None for operators: all.

        The browser sends a namespace as user and its key or token as password; another client may
        send the operator's credential. Raises SignInNeeded, Forbidden, NotReady.
        """
        user = _basic(headers)[0].decode("utf-8", "replace")
        namespace = OPERATOR if user in _OPERATOR_NAMES else user
        try:
            await self.check(namespace, headers)
        except Unauthorized as error:
            raise SignInNeeded(
                f"{error}; in a browser: the namespace as user (none for operators), the key or"
                " token as password"
            ) from None
        return None if namespace == OPERATOR else namespace


def create_access(
    api_keys: str, token_issuers: str, cluster_issuer: str = "", operators: str = ""
) -> Access | None:
    """Access by the keys and issuers in these folders, of the gateway's settings; None: of none."""
    accounts = [each.strip() for each in operators.split(",")]
    read = partial(read_all_issuers, token_issuers, cluster_issuer, frozenset(accounts))
    keys = TenantKeys(Path(api_keys)) if api_keys else None
    tokens = TenantTokens(read) if token_issuers or cluster_issuer else None
    if keys is None and tokens is None:
        return None
    return Access(keys, tokens, partial(way_to_token, cluster_issuer, accounts[0]))


def credential(headers: Headers) -> bytes | None:
    for name, value in headers:
        if name == b"x-api-key":
            return value.strip()
        if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
            return value[len(_BEARER) :].strip()
    return _basic(headers)[1] or None


def _basic(headers: Headers) -> tuple[bytes, bytes]:
    """User and password of basic authentication (RFC 7617); both empty without it."""
    for name, value in headers:
        if name == b"authorization" and value[: len(_BASIC)].lower() == _BASIC:
            try:
                decoded = base64.b64decode(value[len(_BASIC) :].strip(), validate=True)
            except binascii.Error:
                return b"", b""
            user, _, password = decoded.partition(b":")
            return user, password.strip()
    return b"", b""


def _refuse_other_sites(headers: Headers) -> None:
    """Raise Forbidden for a page of another site: a browser adds its password to any request."""
    fields = dict(headers)
    origin, host = fields.get(b"origin"), fields.get(b"host", b"")
    if origin is None or not any(_basic(headers)):
        return
    if origin.partition(b"://")[2] != host:
        raise Forbidden("a page of another site may not send requests with a browser's password")


def without_credentials(headers: Headers) -> Headers:
    """Headers for pods, which serve all tenants and must not see credentials."""
    return [pair for pair in headers if pair[0] not in _CREDENTIAL_HEADERS]


def make_token(secret: PodSecret, model: ModelName, until_s: float) -> bytes:
    """A token with which a model's transformer and explainer call the model back.

    They get it in place of the caller's credential, which may open more than this model: a caller
    may be an operator, or have a token of several namespaces. KServe's components pass
    `authorization` on. It is valid until `until_s` (Unix time), and signed with the pods' secret,
    which all gateways of a platform share; empty without a secret.
    """
    claim = _claim(model, math.ceil(until_s + LEEWAY_S))
    signatures = secret.sign(claim)
    return b"%b.%b" % (claim, b"~".join(signatures)) if signatures else b""


def is_callback(secret: PodSecret, token: bytes | None, model: ModelName, now_s: float) -> bool:
    """Whether a credential is a token for the model that is valid at `now_s` (Unix time)."""
    if token is None or not token.startswith(_PREFIX):
        return False
    claim, _, signatures = token.rpartition(b".")
    expiry = claim.rpartition(b".")[2]
    if not expiry.isdigit() or len(expiry) > 12 or claim != _claim(model, int(expiry)):
        return False
    return int(expiry) >= now_s and secret.has_signed(claim, signatures.split(b"~"))


def _claim(model: ModelName, expiry_s: int) -> bytes:
    """Names of declared models and namespaces have no dots."""
    return b"%b.%b.%b.%d" % (_PREFIX, model.namespace.encode(), model.name.encode(), expiry_s)
