"""boto3 requests to public addresses only, for endpoints that a tenant's Secret names.

boto3 offers its event `before-send` to send a request in its place; here botocore's own session
sends it, over connections that check the address they connect to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)
from botocore.httpsession import URLLib3Session
from botocore.utils import get_environ_proxies
from urllib3.exceptions import NewConnectionError

from runtime.storage.public_addresses import connect_publicly

if TYPE_CHECKING:
    import socket

    from mypy_boto3_s3.client import S3Client


def send_to_public_addresses(
    client: S3Client,
    hosts: frozenset[str],
    *,
    verify: bool | str,
    timeout_s: tuple[float, float],
    max_connections: int,
) -> None:
    """Make a client connect to public addresses and `hosts` only. `timeout_s`: connect, read."""
    proxies = get_environ_proxies(client.meta.endpoint_url)
    options: dict[str, Any] = {"verify": verify, "proxies": proxies, "timeout": timeout_s}
    session: Any = URLLib3Session(max_pool_connections=max_connections, **options)
    session._pool_classes_by_scheme = _checked_pools(hosts)
    session._manager.pool_classes_by_scheme = session._pool_classes_by_scheme

    def send(request: Any, **_: object) -> Any:
        return session.send(request)

    client.meta.events.register("before-send.s3", send)


def _checked_pools(hosts: frozenset[str]) -> dict[str, type]:
    """Connection pools by scheme. They override how a connection opens, as urllib3's SOCKS does."""

    class PlainConnection(AWSHTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _open_socket(self, hosts)

    class TlsConnection(AWSHTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _open_socket(self, hosts)

    class PlainPool(AWSHTTPConnectionPool):
        ConnectionCls: Any = PlainConnection

    class TlsPool(AWSHTTPSConnectionPool):
        ConnectionCls: Any = TlsConnection

    return {"http": PlainPool, "https": TlsPool}


def _open_socket(connection: Any, hosts: frozenset[str]) -> socket.socket:
    timeout = connection.timeout if isinstance(connection.timeout, int | float) else None
    try:
        opened = connect_publicly((connection._dns_host, connection.port), timeout, hosts)
    except OSError as error:
        raise NewConnectionError(connection, str(error)) from error
    for option in connection.socket_options or ():
        opened.setsockopt(*option)
    return opened
