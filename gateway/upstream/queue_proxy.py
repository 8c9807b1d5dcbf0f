"""Which answers are a queue-proxy's own, given instead of those of the pod behind it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gateway.errors import UpstreamLost
from gateway.http.headers import read_response
from gateway.upstream.pod_connection import PodUnreachable
from registry.knative_errors import (
    FAILURE_STATUSES,
    MAX_BODY_BYTES,
    QueueProxyFailure,
    classify_failure,
)

if TYPE_CHECKING:
    from gateway.http.headers import PodResponse
    from gateway.upstream.pod_connection import PodConnection, PodPool

UNANSWERED: Final = {
    QueueProxyFailure.NOT_REACHED: "the pod was lost inside the request",
    QueueProxyFailure.BROKEN: (
        "the pod broke off before it answered; it may have executed the request"
    ),
    QueueProxyFailure.FULL: "the pool's containerConcurrency is reached at the pod",
}
"""What the client is told where the request cannot be tried elsewhere."""
_LOOK_TIMEOUT_S: Final = 5.0


def is_from_pod(connection: PodConnection, answer: PodResponse) -> bool:
    """Whether the pod itself has answered."""
    return bool(connection.status not in FAILURE_STATUSES or answer.pod or answer.not_executed)


async def classify_response(
    connection: PodConnection, pool: PodPool, address: str
) -> QueueProxyFailure:
    """Why somebody else has answered for the pod. Raises PodConnectionLost."""
    why = await _read(connection)
    if why is QueueProxyFailure.BROKEN and await _has_died(pool, address):
        return QueueProxyFailure.NOT_REACHED  # what it was at is gone with it
    return why


async def _read(connection: PodConnection) -> QueueProxyFailure:
    body = b"".join(connection.body_so_far())
    while not connection.is_complete and len(body) < MAX_BODY_BYTES:
        await connection.more_body()
        body += b"".join(connection.body_so_far())
    return classify_failure(connection.status, body)


async def _has_died(pool: PodPool, address: str) -> bool:
    """Whether nobody serves any more behind the queue-proxy, or where it was.

    A process that is being killed may still accept what it then breaks off.
    """
    try:
        connection = await pool.connect(address)
    except PodUnreachable:
        return True
    try:
        async with asyncio.timeout(_LOOK_TIMEOUT_S):
            connection.write(f"GET /v2/health/live HTTP/1.1\r\nhost: {address}\r\n\r\n".encode())
            await connection.head()
            if is_from_pod(connection, read_response(connection.headers)):
                return False
            why = await _read(connection)
    except (TimeoutError, UpstreamLost):
        return False
    finally:
        connection.close()
    return why in (QueueProxyFailure.NOT_REACHED, QueueProxyFailure.BROKEN)
