"""Models in an S3 bucket: `s3://bucket/prefix`, a folder, one object, or the whole bucket.

boto3 lists, describes and signs; `s3_connections` reads the bytes in ranges. Every read is bound to
the listed version by its ETag, and S3's own checksum is compared if the object has one.
"""

from __future__ import annotations

import base64
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial as bind
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

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
from urllib3.exceptions import HTTPError, NewConnectionError

from runtime.errors import ModelChanged, ModelInvalid, StorageFailed
from runtime.storage.access import HOW_TO_GRANT, connect_publicly
from runtime.storage.listing import MAX_LISTED, RemoteFile, checked_listing
from runtime.storage.partial_file import PartialFile
from runtime.storage.ranged_download import BandwidthUse, download_ranges
from runtime.storage.s3_connections import MAX_CONNECTIONS, S3Connections, S3Options, plain_etag

if TYPE_CHECKING:
    from botocore.config import _S3Dict
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import HeadObjectOutputTypeDef


# For endpoints that a tenant's Secret names, requests go to public addresses only: on boto3's event
# `before-send`, botocore's own session sends the request, over connections that check the address.

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
    signature = getattr(client.meta.config, "signature_version", None)
    hint = _hint(error, is_anonymous=signature is UNSIGNED)
    return f"{at}: {' '.join(str(error).split())}{f'; {hint}' if hint else ''}"


def _hint(error: BaseException, *, is_anonymous: bool) -> str:
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return f"set {_KEYS} {_WHERE}"
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        if code in _UNKNOWN_KEY:
            return f"the store does not accept the keys: check {_KEYS} {_WHERE}"
        if code in _DENIED and is_anonymous:
            return f"it was read without credentials: {HOW_TO_GRANT}; or set {_KEYS} {_WHERE}"
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


PRESIGNED_URL_TTL_S = 900

_NO_OBJECT = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN, HTTPStatus.BAD_REQUEST})
"""Without the right to list, S3 answers 403 for a key that does not exist; some stores answer 400
for one with `//`."""

TRANSFER_ERRORS = (BotoCoreError, ClientError, HTTPError, OSError)


class S3Storage:
    def __init__(self, uri: str, access: S3Access, *, is_exact: bool = False) -> None:
        """`is_exact`: a path with `%` or `//` names only the key that it spells."""
        self._uri = uri.rstrip("/")
        self._bucket, prefix = parse_s3_uri(uri)
        unquoted = unquote(prefix)
        others = () if is_exact else (unquoted, re.sub("//+", "/", unquoted))
        self._prefixes = tuple(dict.fromkeys((prefix, *others)))
        self._access = access

    def list_files(self) -> tuple[RemoteFile, ...]:
        """The objects in the folder that the prefix names, else the object of this key.

        Raises StorageFailed, ModelInvalid.
        """
        client = self._access.client
        try:
            for prefix in self._prefixes:
                if files := checked_listing(self._objects(prefix), self._uri):
                    return files
            for key in filter(None, self._prefixes):
                if files := checked_listing(self._object(key), self._uri):
                    return files
        except TRANSFER_ERRORS as error:
            raise StorageFailed(
                f"{self._uri} cannot be listed {s3_problem(error, client)}"
            ) from error
        raise StorageFailed(
            f"{self._uri} does not exist at {client.meta.endpoint_url}: no object has this prefix"
        )

    def _object(self, key: str) -> Iterator[RemoteFile]:
        """The object itself, as the only file of a model's folder; nothing without one."""
        try:
            head = self._access.client.head_object(Bucket=self._bucket, Key=key)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] in _NO_OBJECT:
                return
            raise
        yield RemoteFile(_name(key), head["ContentLength"], plain_etag(head.get("ETag", "")))

    def _objects(self, prefix: str) -> Iterator[RemoteFile]:
        folder = prefix and prefix + "/"
        pages = self._access.client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=folder
        )
        count = 0
        for page in pages:
            for item in page.get("Contents", []):
                path = item["Key"].removeprefix(folder)
                if not path or path.endswith("/"):
                    continue
                count += 1
                if count > MAX_LISTED:
                    raise ModelInvalid(
                        f"{self._uri} has more than {MAX_LISTED} objects: name one model's folder"
                    )
                yield RemoteFile(path, item["Size"], plain_etag(item.get("ETag", "")))

    def read_start(self, file: RemoteFile, size: int) -> bytes:
        name = f"{self._uri}/{file.path}"
        key, _ = self._head(file, name)
        try:
            found = self._access.client.get_object(
                Bucket=self._bucket, Key=key, Range=f"bytes=0-{size - 1}"
            )
            return found["Body"].read()
        except TRANSFER_ERRORS as error:
            raise self._unreadable(error, name) from error

    def fetch(self, partial: PartialFile, bandwidth: BandwidthUse, readers: int) -> None:
        file = partial.file
        name = f"{self._uri}/{file.path}"
        key, head = self._head(file, name)
        sign = bind(self._presigned_url, key)
        open_reader = bind(self._access.connections.reader, sign, file.version, file.size_bytes)
        download_ranges(open_reader, partial, bandwidth, name=name, readers=readers)
        _compare_checksum(head, partial, name)

    def _head(self, file: RemoteFile, name: str) -> tuple[str, HeadObjectOutputTypeDef]:
        """Key and S3's description of the listed object; boto3 also finds the bucket's region."""
        was_found = False
        keys = list(self._keys(file))
        for key in keys:
            try:
                head = self._access.client.head_object(
                    Bucket=self._bucket, Key=key, ChecksumMode="ENABLED"
                )
            except ClientError as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                if status == HTTPStatus.NOT_FOUND or (status in _NO_OBJECT and key != keys[-1]):
                    continue
                raise self._unreadable(error, name) from error
            except TRANSFER_ERRORS as error:
                raise self._unreadable(error, name) from error
            etag = plain_etag(head.get("ETag", file.version))
            if head["ContentLength"] == file.size_bytes and etag == file.version:
                return key, head
            was_found = True
        raise ModelChanged(
            f"{name} was {'replaced' if was_found else 'deleted'} after it was listed"
        )

    def _unreadable(self, error: Exception, name: str) -> StorageFailed:
        return StorageFailed(f"{name} cannot be read {s3_problem(error, self._access.client)}")

    def _keys(self, file: RemoteFile) -> Iterator[str]:
        """Of the object that was listed as this file: the URI's own key first, if it is that."""
        for prefix in self._prefixes:
            if prefix and _name(prefix) == file.path:
                yield prefix
            yield f"{prefix}/{file.path}" if prefix else file.path

    def _presigned_url(self, key: str) -> str:
        return self._access.client.generate_presigned_url(
            "get_object", Params={"Bucket": self._bucket, "Key": key}, ExpiresIn=PRESIGNED_URL_TTL_S
        )


def parse_s3_uri(uri: str) -> tuple[str, str]:
    """Bucket and prefix, which is empty for the whole bucket; raises StorageFailed."""
    parts = urlsplit(uri)
    if not parts.netloc:
        raise StorageFailed(f"storage URI {uri!r} must be s3://bucket or s3://bucket/prefix")
    return parts.netloc, parts.path.strip("/")


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _compare_checksum(head: HeadObjectOutputTypeDef, partial: PartialFile, name: str) -> None:
    """Compare with S3's CRC-32 of the whole object, if it has one, not one of parts' checksums."""
    text = head.get("ChecksumCRC32", "")
    if head.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT" or not text or "-" in text:
        return
    expected, seen = int.from_bytes(base64.b64decode(text), "big"), partial.crc32()
    if seen != expected:
        raise ModelChanged(
            f"{name} does not have the CRC32 that S3 keeps for it: {seen:x}, not {expected:x}"
        )
