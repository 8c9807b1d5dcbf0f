"""Authorisation of requests by tenant, with API keys and tokens."""

import asyncio
import base64
import binascii
import contextlib
import math
from pathlib import Path
from typing import Final

from common.pod_secret import PodSecret
from gateway.authentication.tenant_files import OPERATOR, TenantKeys
from gateway.authentication.tenant_tokens import TenantTokens, looks_like_token
from gateway.errors import Forbidden, SignInNeeded, Unauthorized
from gateway.http.headers import Headers
from registry.domain.model import ModelName

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
LEEWAY_S: Final = 30.0
"""Beyond the request's deadline: clocks of gateways may differ."""


class Access:
    """Checks credentials by tenant. Results do not reveal whether a model exists."""

    def __init__(self, keys: TenantKeys | None, tokens: TenantTokens | None) -> None:
        self._keys = keys
        self._tokens = tokens
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
        if given is None:
            raise Unauthorized(f"{self._accepted} is needed")
        _refuse_other_sites(headers)
        if self._keys is not None and self._keys.contains(namespace, given):
            return
        if self._tokens is None or not looks_like_token(given):
            raise Unauthorized(f"{self._accepted} of namespace {namespace!r} is needed")
        await self._tokens.check(namespace, given)

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


def create_access(*, api_keys: str, token_issuers: str) -> Access | None:
    """Access by the keys and issuers in these folders; None if both are empty."""
    keys = TenantKeys(Path(api_keys)) if api_keys else None
    tokens = TenantTokens(Path(token_issuers)) if token_issuers else None
    return Access(keys, tokens) if keys is not None or tokens is not None else None


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
