"""boto3's client of one S3 account: its options, the addresses it may reach, and its errors.

For endpoints that a tenant's Secret names, requests go to public addresses only: boto3 offers its
event `before-send` to send a request in its place; here botocore's own session sends it, over
connections that check the address they connect to.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore import UNSIGNED
from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSLError,
)
from botocore.httpsession import URLLib3Session
from botocore.utils import get_environ_proxies
from urllib3.exceptions import NewConnectionError

from runtime.errors import StorageFailed
from runtime.storage.public_addresses import connect_publicly
from runtime.storage.s3_connections import MAX_CONNECTIONS, S3Connections
from runtime.storage.s3_options import S3Options

if TYPE_CHECKING:
    from botocore.config import _S3Dict
    from mypy_boto3_s3.client import S3Client


MAX_ATTEMPTS = 5
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
_KEYS: Final = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_WHERE: Final = (
    "of `pilotlight up` (with --no-s3), on a cluster a Secret of the model's service account"
)
_UNKNOWN_KEY: Final = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"}
)
_DENIED: Final = frozenset({"AccessDenied", "403", "AllAccessDisabled"})


@dataclass(frozen=True, slots=True)
class S3Access:
    """Client and connections, shared by all downloads of an account."""

    client: S3Client
    connections: S3Connections


def open_s3(options: S3Options, *, read_timeout_s: float = READ_TIMEOUT_S) -> S3Access:
    """Access with these options; raises StorageFailed if boto3 is misconfigured."""
    style: _S3Dict = {"addressing_style": "virtual"} if options.is_virtual_hosted else {}
    if options.is_accelerated:
        style["use_accelerate_endpoint"] = True
    try:
        client = boto3.session.Session().client(
            "s3",
            endpoint_url=options.endpoint_url,
            aws_access_key_id=options.access_key_id,
            aws_secret_access_key=options.secret_access_key,
            aws_session_token=options.session_token,
            region_name=options.region,
            verify=None if options.verify is True else options.verify,
            config=Config(
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=read_timeout_s,
                max_pool_connections=MAX_CONNECTIONS,
                retries={"mode": "standard", "max_attempts": MAX_ATTEMPTS},
                signature_version=UNSIGNED if options.is_anonymous else "s3v4",
                response_checksum_validation="when_required",
                s3=style or None,
            ),
        )
    except (BotoCoreError, ValueError) as error:
        raise StorageFailed(f"S3 cannot be used: {error}") from error
    if options.hosts is not None:
        _send_to_public_addresses(client, options.hosts, options.verify, read_timeout_s)
    connections = S3Connections(
        verify=options.verify, timeout_s=read_timeout_s, hosts=options.hosts
    )
    return S3Access(client, connections)


def _send_to_public_addresses(
    client: S3Client, hosts: frozenset[str], verify: bool | str, read_timeout_s: float
) -> None:
    """Make a client connect to public addresses and `hosts` only."""
    options: dict[str, Any] = {"verify": verify, "timeout": (CONNECT_TIMEOUT_S, read_timeout_s)}
    options["proxies"] = get_environ_proxies(client.meta.endpoint_url)
    session: Any = URLLib3Session(max_pool_connections=MAX_CONNECTIONS, **options)
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


def s3_problem(error: BaseException, client: S3Client) -> str:
    """The error with the endpoint, and what to set where that is known."""
    at = f"at {client.meta.endpoint_url}"
    hint = _hint(error)
    return f"{at}: {' '.join(str(error).split())}{f'; {hint}' if hint else ''}"


def _hint(error: BaseException) -> str:
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return f"set {_KEYS} {_WHERE}"
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        if code in _UNKNOWN_KEY:
            return f"the store does not accept the keys: check {_KEYS} {_WHERE}"
        if code in _DENIED:
            return (
                f"the keys may not read this: grant them s3:ListBucket and s3:GetObject, or set"
                f" other {_KEYS} {_WHERE}"
            )
        if code == "NoSuchBucket":
            return "check the bucket's name, and AWS_ENDPOINT_URL, which names the store"
        return ""
    if isinstance(error, SSLError):
        return "set AWS_CA_BUNDLE to a file with the store's certificate authority"
    if isinstance(error, EndpointConnectionError | ConnectTimeoutError | ProxyConnectionError):
        return "nothing answers there: check AWS_ENDPOINT_URL, and that the store runs"
    return ""
