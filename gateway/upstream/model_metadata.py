"""A model's V2 metadata, which only a pod can read from the model's files; kept by generation."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.errors import NotReady, UpstreamLost
from gateway.upstream.pod_connection import PodUnreachable

if TYPE_CHECKING:
    from gateway.upstream.pod_connection import PodConnection, PodConnectionPool
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelSpec

_TIMEOUT_S: Final = 10.0
_MAX_BYTES: Final = 1 << 20
_MAX_KEPT: Final = 1024


class ModelMetadata:
    """Asks one pod: one that has the model, else any that accepts requests."""

    def __init__(self, connections: PodConnectionPool, state: ClusterState) -> None:
        self._connections = connections
        self._state = state
        self._kept: dict[str, dict[str, Any]] = {}

    async def read(self, spec: ModelSpec) -> dict[str, Any]:
        """The pod's document. Raises NotReady without a pod that can tell."""
        known = self._kept.get(spec.key)
        if known is None:
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    known = await self._ask(spec)
            except (PodUnreachable, UpstreamLost, TimeoutError, ValueError) as error:
                raise NotReady(
                    f"no pod told the inputs of model {spec.name}: {error}", retry_after_s=1.0
                ) from error
            if len(self._kept) >= _MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[spec.key] = known
        return known

    async def _ask(self, spec: ModelSpec) -> dict[str, Any]:
        address = self._address(spec)
        connection = self._connections.take_idle(address) or await self._connections.connect(
            address
        )
        head = (
            f"GET /v2/models/{spec.name.path_segment} HTTP/1.1\r\nhost: {address}".encode()
            + self._connections.secret.header_line
            + b"\r\n\r\n"
        )
        try:
            connection.write_all(head, [])
            content = await _read(connection)
        except BaseException:
            connection.close()
            raise
        self._connections.release(address, connection)
        document = orjson.loads(content)
        if connection.status != HTTPStatus.OK:
            raise NotReady(str(document.get("error", content[:500])), retry_after_s=1.0)
        found: dict[str, Any] = document
        return found

    def _address(self, spec: ModelSpec) -> str:
        """Of the pod that is likeliest to have the model's files."""
        holders = self._state.holders(spec.key)
        accepting = [pod for pod in self._state.pods.values() if pod.is_accepting]
        if not accepting:
            raise NotReady("no pod accepts requests", retry_after_s=1.0)
        pod = min(accepting, key=lambda each: (_distance(holders.get(each.name)), each.name))
        return pod.address


def _distance(residency: Any) -> int:
    """0: on the device; 1: nearer than the object storage; 2: there."""
    return 2 if residency is None else 0 if residency.is_warm else 1


async def _read(connection: PodConnection) -> bytes:
    await connection.wait_head()
    content = b""
    while not connection.is_complete or connection.has_body:
        content += b"".join(connection.take_body())
        if connection.is_complete:
            break
        if len(content) > _MAX_BYTES:
            raise UpstreamLost(f"the pod's metadata has over {_MAX_BYTES} bytes")
        await connection.wait_body()
    return content
