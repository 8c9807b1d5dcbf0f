"""What pods are asked beside inference: a model's V2 metadata, and loads in the background."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.errors import GatewayError, NotReady, Rejected, UpstreamLost
from gateway.routing.decision import Reason
from gateway.upstream.pod_connection import PodUnreachable
from registry.domain.model import PERMANENT_STATUSES

if TYPE_CHECKING:
    from gateway.upstream.pod_connection import PodConnection, PodConnectionPool
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelName, ModelSpec

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 10.0
_MAX_BYTES: Final = 1 << 20
_MAX_KEPT: Final = 1024
_TOO_LARGE: Final = (b"x-pilotlight-error", b"model-too-large")
"""Of a 507 that another attempt does not change, as it may that of a full disk."""
_LOAD_TIMEOUT_S: Final = 300.0
_MAX_WAITING: Final = 64
_PARALLEL: Final = 4
_LOAD: Final = b'{"parameters": {"tier": "device", "max_other_copies": 0}}'


class ModelMetadata:
    """Metadata, which only a pod can read from the model's files; kept by generation.

    One pod is asked: one that has the model, else any that accepts requests.
    """

    def __init__(self, connections: PodConnectionPool, state: ClusterState) -> None:
        self._connections = connections
        self._state = state
        self._kept: dict[str, dict[str, Any]] = {}

    async def read(self, spec: ModelSpec) -> dict[str, Any]:
        """The pod's document.

        Raises NotReady without a pod that can tell, Rejected where it cannot read the files.
        """
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
        head = f"GET /v2/models/{spec.name.path_segment} HTTP/1.1\r\nhost: {address}"
        content = await _answer(self._connections, address, connection, head)
        document = orjson.loads(content)
        if connection.status in PERMANENT_STATUSES or _TOO_LARGE in connection.headers:
            raise Rejected(
                Reason.LOAD_FAILED,
                str(document.get("error", content[:500])),
                http_status=connection.status,
            )
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


class ModelLoads:
    """Loads that requests have paid for; the pod claims each, and refuses one that is not needed.

    At most one runs for a model. The autoscaler sees it in the registry, like every other.
    """

    def __init__(self, connections: PodConnectionPool, state: ClusterState) -> None:
        self._connections = connections
        self._state = state
        self._waiting: asyncio.Queue[tuple[ModelName, str]] = asyncio.Queue(_MAX_WAITING)
        self._known: set[ModelName] = set()

    def request(self, model: ModelName, pod: str) -> None:
        """Begin a load soon; nothing if one of the model is under way, or too many wait."""
        if model not in self._known and not self._waiting.full():
            self._known.add(model)
            self._waiting.put_nowait((model, pod))

    async def run(self) -> None:
        """Load until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_PARALLEL):
                group.create_task(self._load_each())

    async def _load_each(self) -> None:
        while True:
            model, name = await self._waiting.get()
            try:
                async with asyncio.timeout(_LOAD_TIMEOUT_S):
                    await self._load(model, name)
            except (GatewayError, TimeoutError) as error:
                logger.warning("background load failed", extra={"model": model, "error": error})
            finally:
                self._known.discard(model)

    async def _load(self, model: ModelName, name: str) -> None:
        pod = self._state.pods.get(name)
        if pod is None:
            return
        head = (
            f"POST /v2/repository/models/{model.path_segment}/load HTTP/1.1\r\nhost: {pod.address}"
            f"\r\ncontent-type: application/json\r\ncontent-length: {len(_LOAD)}"
        )
        connection = await self._connections.connect(pod.address)
        content = await _answer(self._connections, pod.address, connection, head, _LOAD)
        if connection.status < HTTPStatus.MULTIPLE_CHOICES:
            logger.info("loaded for requests", extra={"model": model, "pod": name})
        else:
            detail = content[:300].decode("utf-8", "replace")
            logger.warning(
                "background load refused", extra={"model": model, "pod": name, "detail": detail}
            )


async def _answer(
    connections: PodConnectionPool, address: str, connection: PodConnection, head: str,
    body: bytes = b"",
) -> bytes:  # fmt: skip
    """The body of the pod's response. Raises UpstreamLost."""
    try:
        lines = head.encode() + connections.secret.header_line + b"\r\n\r\n"
        connection.write_all(lines, [body] if body else [])
        await connection.wait_head()
        content = b"".join(connection.take_body())
        while not connection.is_complete:
            await connection.wait_body()
            content += b"".join(connection.take_body())
            if len(content) > _MAX_BYTES:
                raise UpstreamLost(f"the pod's answer has over {_MAX_BYTES} bytes")
    except BaseException:
        connection.close()
        raise
    connections.release(address, connection)
    return content
