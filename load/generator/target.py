"""The target of a run: address, paths and hosts of models, metadata, memory of idle models."""

import asyncio
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

from prometheus_client.parser import text_string_to_metric_families

from common.http_client import HttpClient, Response
from common.http_connection import HttpError
from load.errors import CredentialsRefused, GeneratorError, RunFailed
from load.generator.records import http_error
from load.generator.settings import (
    SERVER_NAME,
    Content,
    Layout,
    RequestProtocol,
    RunSettings,
    content_of_metadata,
)

_HOST: Final = re.compile(r"[A-Za-z0-9._:-]+")
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class TargetUrl:
    scheme: str
    host: str
    port: int
    path: str = ""
    """Prefix of every path, without a slash at its end."""

    @property
    def is_encrypted(self) -> bool:
        return self.scheme == "https"

    @property
    def address(self) -> str:
        """Of the HTTP client."""
        return f"[{self.host}]:{self.port}"

    def tls(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if self.is_encrypted else None

    @property
    def authority(self) -> str:
        """Host and port for the `host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(url: str) -> TargetUrl:
    """Parse a URL; the scheme is optional. Raises GeneratorError."""
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        port = parts.port
    except ValueError as error:
        raise GeneratorError(f"--url {url!r}: {error}") from error
    if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment:
        raise GeneratorError(f"--url must be such as http://127.0.0.1:8080, was {url!r}")
    if parts.username is not None:
        raise GeneratorError("--url must not hold a user or password")
    number = port if port is not None else _PORTS[parts.scheme]
    return TargetUrl(parts.scheme, parts.hostname, number, parts.path.rstrip("/"))


def is_host(text: str) -> bool:
    """True if `text` is valid in a `host` header."""
    return _HOST.fullmatch(text) is not None


def host_headers(pattern: str | None, tenant: str, model: str) -> dict[str, str]:
    """The `host` header by a pattern such as `{model}.{tenant}.example.com`; empty without one."""
    if pattern is None:
        return {}
    return {"host": pattern.replace("{model}", model).replace("{tenant}", tenant)}


def inference_path(
    protocol: RequestProtocol, layout: Layout, *, tenant: str, model: str, is_generation: bool
) -> str:
    name = _model_segment(layout, tenant, model)
    match protocol:
        case RequestProtocol.V1:
            path = f"/v1/models/{name}:predict"
        case RequestProtocol.V2:
            path = f"/v2/models/{name}/infer"
        case RequestProtocol.OPENAI:
            path = f"/openai/v1/{'completions' if is_generation else 'embeddings'}"
    return _prefix(layout, tenant, model, is_openai=protocol is RequestProtocol.OPENAI) + path


def metadata_path(layout: Layout, *, tenant: str, model: str) -> str:
    name = _model_segment(layout, tenant, model)
    return f"{_prefix(layout, tenant, model, is_openai=False)}/v2/models/{name}"


def _model_segment(layout: Layout, tenant: str, model: str) -> str:
    return quote(f"{tenant}~{model}", safe="~") if layout is Layout.POD else quote(model, safe="")


def _prefix(layout: Layout, tenant: str, model: str, *, is_openai: bool) -> str:
    if layout is Layout.GATEWAY:
        return f"/serving/{quote(tenant, safe='')}/{quote(model, safe='')}"
    if layout is Layout.POD and is_openai:
        return f"/serving/{_model_segment(layout, tenant, model)}"
    return ""


_TIMEOUT_S: Final = 10.0
_MAX_CONCURRENT: Final = 16


@dataclass(frozen=True, slots=True)
class TargetDescription:
    layout: Layout
    contents: dict[str, Content]
    """By `tenant/model`; only models whose metadata describes inputs."""
    missing: tuple[str, ...]
    """`tenant/model` of the models whose metadata request got a 404."""
    without_inputs: tuple[str, ...]
    """`tenant/model` of the models whose metadata lists no inputs."""


async def inspect(settings: RunSettings, models: Sequence[tuple[str, str]]) -> TargetDescription:
    """Request the metadata of a target and its models.

    Raises RunFailed; CredentialsRefused if the target answers 401 for every model.
    """
    url = settings.url
    with _Target(settings) as target:
        try:
            layout = await _layout(target)
        except HttpError as error:
            raise RunFailed(
                f"no server responds at {url}: {error}; start a platform with `pilotlight up`, or "
                "name a gateway or KServe predictor with --url"
            ) from error
        slots = asyncio.Semaphore(_MAX_CONCURRENT)

        async def get_metadata(tenant: str, model: str) -> tuple[str, Response | None]:
            headers = host_headers(settings.host_header, tenant, model)
            path = metadata_path(layout, tenant=tenant, model=model)
            async with slots:
                try:
                    return f"{tenant}/{model}", await target.get(path, headers)
                except HttpError:
                    return f"{tenant}/{model}", None

        responses = await asyncio.gather(*(get_metadata(*each) for each in models))
    answered = [(name, each) for name, each in responses if each is not None]
    refused = [each for _, each in answered if each.status == HTTPStatus.UNAUTHORIZED]
    if refused and len(refused) == len(responses):
        raise CredentialsRefused(f"{url}: {http_error(401, refused[0].body)}")
    missing = tuple(name for name, each in answered if each.status == HTTPStatus.NOT_FOUND)
    described = {name: _json(each) for name, each in answered if each.is_success}
    contents = {
        name: content for name, each in described.items() if (content := content_of_metadata(each))
    }
    without = tuple(
        name
        for name, each in described.items()
        if isinstance(each, dict) and not each.get("inputs")
    )
    return TargetDescription(layout, contents, missing, without)


class _Target:
    """Requests to the target, on connections that its context closes."""

    def __init__(self, settings: RunSettings) -> None:
        self._url = parse_url(settings.url)
        self._headers = {"host": self._url.authority, **settings.credentials}
        self._client = HttpClient(tls=self._url.tls())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Response:
        """Raises HttpError."""
        return await self._client.request(
            "GET",
            self._url.address,
            self._url.path + path,
            self._headers | dict(headers or {}),
            timeout_s=_TIMEOUT_S,
        )


async def _layout(target: _Target) -> Layout:
    server = _json(await target.get("/v2"))
    if not isinstance(server, dict) or server.get("name") != SERVER_NAME:
        return Layout.PLAIN
    ready = _json(await target.get("/readyz"))
    is_gateway = isinstance(ready, dict) and "registry_version" in ready
    return Layout.GATEWAY if is_gateway else Layout.POD


def _json(response: Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


_METRIC: Final = "pilotlight_idle_memory_byte_seconds"


class IdleMemoryProbe:
    """Reads the memory of idle models at the beginning and at the end of a run: a counter.

    A gateway has the total of its pool, deleted pods included, as of each pod's last heartbeat; a
    pod has its own current total.
    """

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._before: float | None = None

    async def begin(self) -> None:
        self._before = await _read_byte_s(self._settings)

    async def end(self) -> float | None:
        """Bytes x seconds since `begin`; None if the target has no counter, or reset it."""
        before, after = self._before, await _read_byte_s(self._settings)
        return None if before is None or after is None or after < before else after - before


async def _read_byte_s(settings: RunSettings) -> float | None:
    if settings.layout is Layout.PLAIN:
        return None
    is_gateway = settings.layout is Layout.GATEWAY
    path = "/pilotlight/v1/idle-memory" if is_gateway else "/metrics"
    with _Target(settings) as target:
        try:
            response = await target.get(path)
            if not response.is_success:
                return None
            if is_gateway:
                return float(response.json()["idle_memory_byte_seconds"])
            return _of_metrics(response.text)
        except (HttpError, ValueError, KeyError):
            return None


def _of_metrics(text: str) -> float | None:
    for family in text_string_to_metric_families(text):
        if family.name == _METRIC:
            return sum(sample.value for sample in family.samples)
    return None
