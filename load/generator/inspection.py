"""Requests, before a run, the layout of an HTTP target and the inputs that its models take."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx

from load.generator.content import Content, content_of_metadata
from load.generator.errors import TargetUnreachable
from load.generator.settings import SERVER_NAME, Layout
from load.generator.target_url import base_url, host_headers, metadata_path

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIMEOUT_S: Final = 10.0
_MAX_CONCURRENT: Final = 16


@dataclass(frozen=True, slots=True)
class TargetDescription:
    layout: Layout
    contents: dict[str, Content]
    """By `tenant/model`; only models whose metadata describes inputs."""
    missing: tuple[str, ...]
    """`tenant/model` of the models whose metadata request got a 404."""


async def inspect(
    url: str, models: Sequence[tuple[str, str]], *, host_header: str | None = None
) -> TargetDescription:
    """Request the metadata of a target and its models. Raises TargetUnreachable."""
    async with httpx.AsyncClient(
        base_url=base_url(url), trust_env=False, timeout=_TIMEOUT_S
    ) as client:
        try:
            layout = await _layout(client)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise TargetUnreachable(
                f"no server responds at {url}: {reason}; start a platform with `pilotlight up`, or "
                "name a gateway or KServe predictor with --url"
            ) from error
        slots = asyncio.Semaphore(_MAX_CONCURRENT)

        async def get_metadata(tenant: str, model: str) -> tuple[str, httpx.Response | None]:
            headers = host_headers(host_header, tenant, model)
            path = metadata_path(layout, tenant=tenant, model=model)
            async with slots:
                try:
                    return f"{tenant}/{model}", await client.get(path, headers=headers)
                except httpx.HTTPError:
                    return f"{tenant}/{model}", None

        responses = await asyncio.gather(*(get_metadata(*each) for each in models))
    missing = tuple(name for name, each in responses if each and each.status_code == 404)
    contents = {name: content for name, each in responses if (content := _content(each))}
    return TargetDescription(layout, contents, missing)


async def _layout(client: httpx.AsyncClient) -> Layout:
    server = _json(await client.get("/v2"))
    if not isinstance(server, dict) or server.get("name") != SERVER_NAME:
        return Layout.PLAIN
    ready = _json(await client.get("/readyz"))
    is_gateway = isinstance(ready, dict) and "registry_version" in ready
    return Layout.GATEWAY if is_gateway else Layout.POD


def _content(response: httpx.Response | None) -> Content | None:
    if response is None or not response.is_success:
        return None
    return content_of_metadata(_json(response))


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None
