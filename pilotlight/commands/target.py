"""Which platform a verb speaks to, and how: registry and gateway of a home folder, or as named."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from pilotlight.errors import InvalidInput, RequestFailed
from pilotlight.state_dir import StateDir
from registry.domain.model import ModelName
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.server_address import find_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from registry.domain.cluster import ClusterState

_GATEWAY_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class PlatformTarget:
    """Where the user wants something done. Addresses left out come from the home folder."""

    home: StateDir
    redis_url: str | None = None
    gateway: str | None = None
    pool: str = "default"

    @classmethod
    def of(
        cls, home: Path | None, *, redis_url: str | None = None, gateway: str | None = None,
        pool: str = "default",
    ) -> PlatformTarget:  # fmt: skip
        """A target from the flags of a verb."""
        return cls(StateDir.of(home), redis_url, gateway, pool)

    @asynccontextmanager
    async def registry(self) -> AsyncIterator[Registry]:
        """A registry client; its outages become errors that say what to do."""
        if self.redis_url is None:
            state = self.home.require_running()
            url, pool = state.redis_url, state.pool
        else:
            url, pool = self.redis_url, self.pool
        registry = await connect_registry(url, pool)
        try:
            yield registry
        except RegistryUnavailable as error:
            raise RequestFailed(f"the registry at {url} went away: {error}") from error
        finally:
            await registry.close()

    async def cluster(self) -> ClusterState:
        """All pods, models and tiers as they stand in the registry now."""
        async with self.registry() as registry:
            return await registry.cluster()

    @property
    def gateway_url(self) -> str:
        """Address of the gateway, without a slash at its end."""
        url = self.gateway or self.home.require_running().gateway
        return (url if "://" in url else f"http://{url}").rstrip("/")

    async def ask_gateway(
        self, method: str, path: str, *, content: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:  # fmt: skip
        """One request to the gateway; `RequestFailed` where nobody answers."""
        url = self.gateway_url
        async with httpx.AsyncClient(trust_env=False, timeout=_GATEWAY_TIMEOUT_S) as client:
            try:
                return await client.request(method, url + path, content=content, headers=headers)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise RequestFailed(f"no answer from the gateway at {url}: {error}") from error


async def connect_registry(url: str, pool: str) -> Registry:
    """A registry client, or an error that says whether the address or the server is wrong."""
    try:
        await find_server(url, "")
        return await Registry.connect(url, pool)
    except RegistryUnavailable as error:
        raise RequestFailed(f"no registry answers at {url}: {error}") from error
    except ValueError as error:
        raise InvalidInput([f"--redis-url: {error}"]) from error


def model_names(names: Sequence[str], namespace: str | None) -> list[ModelName]:
    """Names as `kubectl` takes them: `name`, or `namespace/name`."""
    parsed, problems = [], []
    for text in names:
        plain = text.removeprefix("inferenceservice/").removeprefix("isvc/")
        name = ModelName.parse(plain) if "/" in plain else ModelName(namespace or "default", plain)
        if not name.name or not name.namespace or "/" in name.name:
            problems.append(f"a model is named NAME or NAMESPACE/NAME, was {text!r}")
        parsed.append(name)
    if problems:
        raise InvalidInput(problems)
    return parsed
