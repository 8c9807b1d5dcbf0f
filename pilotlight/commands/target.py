"""The platform and the models that a verb addresses, and the clients to reach them."""

import shutil
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from common.pod_secret import PodSecret
from pilotlight.errors import InvalidInput, NotFound, RequestFailed
from pilotlight.output import Output, format_bytes
from pilotlight.state_dir import StateDir
from registry.domain.cluster import ClusterState
from registry.domain.pod_state import PodState
from registry.errors import RegistryRefused, RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.server_address import find_server

_GATEWAY_TIMEOUT_S = 300.0
_RESTARTS: Final = (
    "; the platform restarts a gateway that has ended: try again, or see `pilotlight logs gateway`"
)
KEY_HINT: Final = "give --key or set PILOTLIGHT_KEY"
"""How an error of a request without a valid credential ends."""


@dataclass(frozen=True, slots=True)
class PlatformTarget:
    """The platform that a verb addresses. Addresses left out come from the state directory."""

    state_dir: StateDir
    redis_url: str | None = None
    gateway: str | None = None
    pool: str = "default"
    pod_secret_file: Path | None = None
    key: str = field(default="", repr=False)
    """What requests to the gateway carry, if anything."""

    @property
    def pod_secret(self) -> PodSecret:
        """What requests to pods carry; raises InvalidInput for an unusable file."""
        file = self.pod_secret_file
        if file is None and self.redis_url is None and self.state_dir.pod_secret.exists():
            file = self.state_dir.pod_secret
        try:
            return PodSecret(str(file or ""))
        except (OSError, ValueError) as error:
            raise InvalidInput([f"--pod-secret-file {file}: {error}"]) from error

    @asynccontextmanager
    async def registry(self) -> AsyncIterator[Registry]:
        """A registry client; raises RequestFailed when the registry becomes unavailable."""
        if self.redis_url is None:
            state = self.state_dir.require_ready()
            url, pool = state.redis_url, state.pool
        else:
            url, pool = self.redis_url, self.pool
        registry = await _connect_registry(url, pool)
        embedded = self.state_dir.redis if self.redis_url is None else None
        try:
            yield registry
            if not await is_saving(registry):
                unsaved = await unsaved_text(registry, embedded)
                Output().note(f"{unsaved}. Until then states of pods and models are not up to date")
        except RegistryUnavailable as error:
            if is_save_error(error):
                raise RequestFailed(await unsaved_text(registry, embedded)) from error
            raise RequestFailed(f"lost the connection to the registry at {url}: {error}") from error
        finally:
            await registry.close()

    async def cluster(self) -> ClusterState:
        async with self.registry() as registry:
            return await registry.cluster()

    @property
    def gateway_url(self) -> str:
        """Address of the gateway, without a trailing slash."""
        url = self.gateway or self.state_dir.require_ready().gateway
        return (url if "://" in url else f"http://{url}").rstrip("/")

    @property
    def known_gateway_url(self) -> str:
        """As `gateway_url`; empty where only a registry was named."""
        return "" if self.redis_url is not None and self.gateway is None else self.gateway_url

    async def request_gateway(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """One request to the gateway. Raises RequestFailed without a response and at 401."""
        credentials = {"authorization": f"Bearer {self.key}"} if self.key else {}
        headers = {**(headers or {}), **credentials}
        response = await self._exchange(method, path, content=content, headers=headers)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            given = (
                "the one given does not open it: name its namespace (-n), or " if self.key else ""
            )
            raise RequestFailed(f"{error_text(response)}; {given}{KEY_HINT}")
        return response

    async def asks_clients(self) -> bool:
        """Whether the gateway answers nobody without a credential; False where none is known."""
        if not self.known_gateway_url:
            return False
        return (await self._exchange("GET", "/v1/models")).status_code == httpx.codes.UNAUTHORIZED

    async def _exchange(self, method: str, path: str, **options: Any) -> httpx.Response:
        url, restarts = self.gateway_url, "" if self.gateway else _RESTARTS
        async with httpx.AsyncClient(trust_env=False, timeout=_GATEWAY_TIMEOUT_S) as client:
            try:
                return await client.request(method, url + path, **options)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                message = f"no response from the gateway at {url}: {error}{restarts}"
                raise RequestFailed(message) from error

    async def request_pod(
        self, pod: PodState, method: str, path: str, *, timeout_s: float, json: Any = None
    ) -> httpx.Response:
        """One request to a pod, with the pods' secret; raises RequestFailed without a response."""
        url = f"http://{pod.address}{path}"
        headers = self.pod_secret.headers
        async with httpx.AsyncClient(trust_env=False, timeout=timeout_s) as client:
            try:
                return await client.request(method, url, json=json, headers=headers)
            except httpx.HTTPError as error:
                message = f"no response from pod {pod.name} at {url}: {error!r}"
                raise RequestFailed(message) from error


async def _connect_registry(url: str, pool: str) -> Registry:
    """A registry client; InvalidInput for a malformed URL, RequestFailed without a server."""
    try:
        await find_server(url, "")  # raises ValueError for a malformed URL
        return await Registry.connect(url, pool)
    except RegistryUnavailable as error:
        raise RequestFailed(f"no registry answers at {url}: {error}") from error
    except ValueError as error:
        raise InvalidInput([f"--redis-url: {error}"]) from error


def error_text(response: httpx.Response) -> str:
    """The error message in a response, with the status."""
    try:
        document = response.json()
        text = str(document["error"]) if isinstance(document, dict) else str(document)
    except (ValueError, KeyError):
        text = response.text.strip()[:500]
    return f"{text or response.reason_phrase} (HTTP {response.status_code})"


def read_response(response: httpx.Response, what: str) -> Any:
    """The response's JSON. Raises InvalidInput for 400, NotFound for 404, else RequestFailed."""
    try:
        document = response.json()
    except ValueError:
        document = {"error": response.text[:500]}
    if response.is_success:
        return document
    message = f"{what}: {text_of_error(document)}"
    if response.status_code in (400, 413):
        raise InvalidInput([message])
    if response.status_code == 404:
        raise NotFound(message)
    raise RequestFailed(f"{message} (HTTP {response.status_code})")


def text_of_error(document: Any) -> str:
    """The error in a response, with its line of the workflow's file."""
    if not isinstance(document, dict):
        return str(document)
    return error_with_line(
        {"message": document.get("error", document), "line": document.get("line")}
    )


def error_with_line(error: Mapping[str, Any]) -> str:
    """An error's message, with its line of the workflow's file."""
    text = str(error["message"])
    return f"{text} (line {error['line']})" if error.get("line") and "(line" not in text else text


def require_known(names: Sequence[str], known: Collection[str]) -> None:
    """Raises NotFound for names that are not among the known ones, and lists those."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise NotFound(
            f"not found: {', '.join(unknown)}; there are: {', '.join(sorted(known)) or 'none'}"
        )


def is_save_error(error: BaseException | None) -> bool:
    """Whether Redis has refused a change because it cannot write its files."""
    while error is not None and not isinstance(error, RegistryRefused):
        error = error.__cause__
    return error is not None and error.cannot_save


async def is_saving(registry: Registry) -> bool:
    """False once Redis has failed to write its append-only file; also for those who may not ask."""
    with suppress(RegistryUnavailable):
        report = await registry.transactions.command("INFO", "persistence")
        return b"aof_last_write_status:err" not in report
    return True


async def unsaved_text(registry: Registry, embedded: Path | None) -> str:
    """What is wrong and what to do. `embedded`: the folder of the platform's own Redis."""
    return (
        f"the registry at {registry.url} cannot save changes, its disk is full: "
        f"{await _place_text(registry, embedded)}. Free space there; Redis takes changes again "
        "within a second"
    )


async def _place_text(registry: Registry, embedded: Path | None) -> str:
    if embedded is not None:
        with suppress(OSError):
            free = shutil.disk_usage(embedded).free
            return f"it writes to {embedded}, whose file system has {format_bytes(free)} free"
    folder = "its folder"
    with suppress(RegistryUnavailable):
        _, found = await registry.transactions.command("CONFIG", "GET", "dir")
        folder = found.decode()
    return f"it writes to {folder} on its machine"
