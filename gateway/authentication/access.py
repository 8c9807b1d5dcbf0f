"""Who may ask for what: API keys and tokens, of tenants and of the operator."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.authentication.tenant_files import OPERATOR
from gateway.authentication.tenant_keys import TenantKeys
from gateway.authentication.tenant_tokens import TenantTokens, looks_like_token
from gateway.errors import Forbidden, Unauthorized

if TYPE_CHECKING:
    from gateway.http.headers import Headers

_CARRIERS: Final = frozenset((b"authorization", b"x-api-key"))
_BEARER: Final = b"bearer "
_FREE: Final = frozenset(("/", "/healthz", "/readyz", "/v2", "/v2/health/live", "/v2/health/ready"))
_TENANTS: Final = ("/v1/", "/v2/", "/openai/")


class Access:
    """The gateway's guard. It knows tenants, not models: what is absent is refused alike."""

    def __init__(self, keys: TenantKeys | None, tokens: TenantTokens | None) -> None:
        self._keys = keys
        self._tokens = tokens
        ways = []
        if tokens is not None:
            ways.append("a token (authorization: Bearer TOKEN)")
        if keys is not None:
            ways.append("an API key (authorization: Bearer KEY, or x-api-key: KEY)")
        self._wanted = " or ".join(ways)

    async def follow(self) -> None:
        """Keep what is trusted fresh."""
        async with asyncio.TaskGroup() as following:
            if self._keys is not None:
                following.create_task(self._keys.follow())
            if self._tokens is not None:
                following.create_task(self._tokens.follow())

    async def check(self, namespace: str, headers: Headers) -> None:
        """Pass whoever may ask for the tenant's models.

        Raises Unauthorized, Forbidden, NotReady, whatever models there are.
        """
        given = credential(headers)
        if given is None:
            raise Unauthorized(f"{self._wanted} is needed")
        if self._keys is not None and self._keys.has(namespace, given):
            return
        if self._tokens is None or not looks_like_token(given):
            raise Unauthorized(f"{self._wanted} of namespace {namespace!r} is needed")
        await self._tokens.check(namespace, given)

    async def may(self, namespace: str, headers: Headers) -> bool:
        """As `check`, for who can do without. Raises NotReady."""
        try:
            await self.check(namespace, headers)
        except (Unauthorized, Forbidden):
            return False
        return True

    async def check_path(self, path: str, namespace: str, headers: Headers) -> None:
        """As `check`, for what is no inference: health is free, metrics are the operator's."""
        if path not in _FREE:
            await self.check(namespace if path.startswith(_TENANTS) else OPERATOR, headers)


def create_access(*, api_keys: str, token_issuers: str, token_leeway_s: float) -> Access | None:
    """Access by the keys and issuers in these folders; None if both are empty."""
    keys = TenantKeys(Path(api_keys)) if api_keys else None
    tokens = None
    if token_issuers:
        tokens = TenantTokens(Path(token_issuers), leeway_s=token_leeway_s)
    return Access(keys, tokens) if keys is not None or tokens is not None else None


def credential(headers: Headers) -> bytes | None:
    """The key or token a request carries."""
    for name, value in headers:
        if name == b"x-api-key":
            return value.strip()
        if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
            return value[len(_BEARER) :].strip()
    return None


def without_credentials(headers: Headers) -> Headers:
    """What pods, which serve all tenants, may see of a request's headers."""
    return [pair for pair in headers if pair[0] not in _CARRIERS]
