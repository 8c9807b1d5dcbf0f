"""What an HTTP target says of itself and its models, asked once before a run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx

from load.generator.content import Content, content_of_metadata
from load.generator.errors import TargetUnreachable
from load.generator.paths import metadata_path
from load.generator.settings import SERVER_NAME, Layout
from load.generator.target_url import host_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIMEOUT_S: Final = 10.0
_AT_A_TIME: Final = 16


@dataclass(frozen=True, slots=True)
class TargetDescription:
    """What a target says of itself."""

    layout: Layout
    contents: dict[str, Content]
    """By `tenant/model`, where the metadata tell."""
    missing: tuple[str, ...]
    """`tenant/model` of those it answers 404 for."""


async def inspect(
    url: str, models: Sequence[tuple[str, str]], *, host_header: str | None = None
) -> TargetDescription:
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
    return TargetDescription(layout, contents, missing)


async def _layout(client: httpx.AsyncClient) -> Layout:
    server = _document(await client.get("/v2"))
    if not isinstance(server, dict) or server.get("name") != SERVER_NAME:
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
