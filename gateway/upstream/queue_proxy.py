"""Recognises responses that a queue-proxy sends itself, in place of the pod behind it."""

import asyncio
from typing import Final

from common.pod_responses import (
    FAILURE_STATUSES,
    MAX_BODY_BYTES,
    QueueProxyFailure,
    classify_failure,
)
from gateway.errors import UpstreamLost
from gateway.http.pod_response import PodResponse
from gateway.upstream.pod_connection import (
    PodConnection,
    PodConnectionLost,
    PodConnectionPool,
    PodUnreachable,
)

MESSAGES: Final = {
    QueueProxyFailure.NOT_REACHED: "the pod was lost during the request",
    QueueProxyFailure.BROKEN: (
        "the pod's connection broke without a response; it may have executed the request"
    ),
    QueueProxyFailure.FULL: "the pool's containerConcurrency is reached at the pod",
}
"""Error message by cause, where the request cannot be retried."""
_PROBE_TIMEOUT_S: Final = 5.0
_PROBES: Final = 5
_PROBE_PAUSE_S: Final = 0.05


def is_from_pod(response: PodResponse) -> bool:
    return bool(response.status not in FAILURE_STATUSES or response.pod or response.not_executed)


async def classify_response(
    connection: PodConnection, connections: PodConnectionPool, address: str
) -> QueueProxyFailure:
    """Why the pod itself did not respond. Raises PodConnectionLost."""
    cause = await _read(connection)
    if cause is QueueProxyFailure.BROKEN and await has_died(connections, address):
        return QueueProxyFailure.NOT_REACHED  # the pod is dead, and so is any execution in it
    return cause


async def _read(connection: PodConnection) -> QueueProxyFailure:
    body = b"".join(connection.take_body())
    while not connection.is_complete and len(body) < MAX_BODY_BYTES:
        await connection.wait_body()
        body += b"".join(connection.take_body())
    return classify_failure(connection.status, body)


async def has_died(connections: PodConnectionPool, address: str) -> bool:
    """True if the container behind the queue-proxy does not respond, or both are gone.

    A process that is being killed may still accept a connection, which then breaks off.
    """
    for _ in range(_PROBES):
        try:
            connection = await connections.connect(address)
        except PodUnreachable:
            return True
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                return await _is_container_gone(connection, address)
        except PodConnectionLost:
            await asyncio.sleep(_PROBE_PAUSE_S)
        except (TimeoutError, UpstreamLost):
            return False
        finally:
            connection.close()
    return False


async def _is_container_gone(connection: PodConnection, address: str) -> bool:
    connection.start()
    connection.write(f"GET /v2/health/live HTTP/1.1\r\nhost: {address}\r\n\r\n".encode())
    await connection.wait_head()
    if is_from_pod(connection.response):
        return False
    cause = await _read(connection)
    return cause in (QueueProxyFailure.NOT_REACHED, QueueProxyFailure.BROKEN)
