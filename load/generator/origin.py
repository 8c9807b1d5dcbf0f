"""The target of a run: its address as a URL gives it, and what it says of itself and its models."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httpx

from load.generator.content import Content, content_of_metadata
from load.generator.errors import BadTarget, TargetUnreachable
from load.generator.paths import metadata_path
from load.generator.settings import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

_PORTS: Final = {"http": 80, "https": 443, "grpc": 80, "grpcs": 443}
_TIMEOUT_S: Final = 10.0
_AT_A_TIME: Final = 16


@dataclass(frozen=True, slots=True)
class Origin:
    """Where requests go."""

    scheme: str
    host: str
    port: int
    path: str = ""
    """In front of every path, without a slash at its end."""

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is spoken."""
        return self.scheme in ("https", "grpcs")

    @property
    def authority(self) -> str:
        """Host and port for the `host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(url: str, *, is_grpc: bool) -> Origin:
    """Read a URL; the scheme may be left out. Raises BadTarget."""
    whole = url if "://" in url else f"{'grpc' if is_grpc else 'http'}://{url}"
    allowed = ("grpc", "grpcs", "http", "https") if is_grpc else ("http", "https")
    try:
        parts = urlsplit(whole)
        port = parts.port
    except ValueError as error:
        raise BadTarget(f"--url {url!r}: {error}") from error
    if parts.scheme not in allowed or not parts.hostname or parts.query or parts.fragment:
        raise BadTarget(f"--url must be such as {allowed[0]}://127.0.0.1:8080, was {url!r}")
    if parts.username is not None:
        raise BadTarget("--url must not hold a user or password")
    number = port if port is not None else _PORTS[parts.scheme]
    return Origin(parts.scheme, parts.hostname, number, parts.path.rstrip("/"))


@dataclass(frozen=True, slots=True)
class Found:
    """What a target says of itself."""

    layout: Layout
    contents: dict[str, Content]
    """By `tenant/model`, where the metadata tell."""
    missing: tuple[str, ...]
    """`tenant/model` of those it answers 404 for."""


async def inspect(
    url: str, models: Sequence[tuple[str, str]], *, host_header: str | None = None
) -> Found:
    """Ask an HTTP target what it is and what its models take. Raises TargetUnreachable."""
    base = url if "://" in url else f"http://{url}"
    async with httpx.AsyncClient(
        base_url=base.rstrip("/"), trust_env=False, timeout=_TIMEOUT_S
    ) as client:
        try:
            layout = await _layout(client)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise TargetUnreachable(
                f"nobody answers at {url}: {reason}; start a platform with `pilotlight up`, or "
                "name a gateway or KServe predictor with --url"
            ) from error
        gate = asyncio.Semaphore(_AT_A_TIME)

        async def ask(tenant: str, model: str) -> tuple[str, httpx.Response | None]:
            headers = host_headers(host_header, tenant, model)
            async with gate:
                try:
                    path = metadata_path(layout, tenant=tenant, model=model)
                    return f"{tenant}/{model}", await client.get(path, headers=headers)
                except httpx.HTTPError:
                    return f"{tenant}/{model}", None

        answers = await asyncio.gather(*(ask(*each) for each in models))
    missing = tuple(name for name, answer in answers if answer and answer.status_code == 404)
    contents = {name: content for name, answer in answers if (content := _content(answer))}
    return Found(layout, contents, missing)


def host_headers(pattern: str | None, tenant: str, model: str) -> dict[str, str]:
    """The `host` header that a pattern such as `{model}.{tenant}.example.com` makes, if any."""
    if pattern is None:
        return {}
    return {"host": pattern.replace("{model}", model).replace("{tenant}", tenant)}


async def _layout(client: httpx.AsyncClient) -> Layout:
    server = _document(await client.get("/v2"))
    if not isinstance(server, dict) or server.get("name") != "pilotlight":
        return Layout.PLAIN
    ready = _document(await client.get("/readyz"))
    is_gateway = isinstance(ready, dict) and "registry_version" in ready
    return Layout.GATEWAY if is_gateway else Layout.POD


def _content(answer: httpx.Response | None) -> Content | None:
    if answer is None or not answer.is_success:
        return None
    return content_of_metadata(_document(answer))


def _document(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None
