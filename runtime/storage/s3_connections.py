"""S3 accounts, and connections for the bytes of objects; boto3 signs, lists and finds endpoints.

boto3's own streams copy each byte several times: reading presigned URLs into one buffer is more
than twice as fast. Each reader has a connection; they are limited per pod and endpoint.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from runtime.errors import ModelChanged, StorageFailed
from runtime.storage.access import connect_publicly
from runtime.storage.ranged_download import ReadInterrupted

MAX_CONNECTIONS = 128
"""Eight loads of `MAX_READERS` each: a ninth waits, however small it is, until one of them ends."""
MAX_ERROR_BYTES = 4096
RETRYABLE_STATUSES: Final = frozenset({408, 425, 429})
PARTIAL_CONTENT: Final = 206
CONNECTION_ERRORS = (OSError, http.client.HTTPException)


class S3Connections:
    """All connections of a pod to one endpoint."""

    def __init__(
        self, *, verify: bool | str, timeout_s: float, hosts: frozenset[str] | None = None
    ) -> None:
        """`hosts`: only public addresses and these hosts are connected to; None: any."""
        self._verify = verify
        self._hosts = hosts
        self._timeout_s = timeout_s
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)

    @contextmanager
    def reader(self, sign: Callable[[], str], etag: str, size_bytes: int) -> Iterator[S3Reader]:
        with self._slots:
            reader = S3Reader(self, sign, etag, size_bytes)
            try:
                yield reader
            finally:
                reader.close()

    def target(self, url: str) -> str:
        """Target of the request line: the path, or for a proxy of plain HTTP the whole URL."""
        parts = urlsplit(url)
        if parts.scheme == "http" and _proxy(url) is not None:
            return url
        return f"{parts.path}?{parts.query}" if parts.query else parts.path

    def connect(self, url: str) -> http.client.HTTPConnection:
        """A connection to the URL's server, which opens with its first request."""
        parts, proxy = urlsplit(url), _proxy(url)
        host, port = parts.hostname or "", parts.port
        via = urlsplit(proxy) if proxy is not None else None
        address = (host, port) if via is None else (via.hostname or "", via.port)
        connection: http.client.HTTPConnection
        if parts.scheme == "http":
            connection = http.client.HTTPConnection(*address, timeout=self._timeout_s)
        else:
            connection = http.client.HTTPSConnection(
                *address, timeout=self._timeout_s, context=self._tls_context
            )
            if via is not None:
                connection.set_tunnel(host, port or 443)
        if self._hosts is not None:
            hosts = self._hosts

            def checked(address: Any, timeout: float, _source: object) -> socket.socket:
                return connect_publicly(address, timeout, hosts)

            setattr(connection, "_create_connection", checked)  # noqa: B010 - http.client's own seam
        return connection

    @cached_property
    def _tls_context(self) -> ssl.SSLContext:
        bundle = self._verify if isinstance(self._verify, str) else None
        context = ssl.create_default_context(cafile=bundle)
        if self._verify is False:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _proxy(url: str) -> str | None:
    """The proxy that the environment names for a URL, by the rules of boto3."""
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.hostname or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


@dataclass(eq=False, slots=True)
class S3Reader:
    """Reads ranges of one version of one object."""

    connections: S3Connections
    sign: Callable[[], str]
    etag: str
    size_bytes: int
    _idle: http.client.HTTPConnection | None = None
    _reading: http.client.HTTPConnection | None = None
    _is_aborted: bool = False
    _url: str = ""

    def abort(self) -> None:
        """Shut the connection that a read in another thread waits for, and refuse later reads."""
        self._is_aborted = True
        reading = self._reading
        taken = reading.sock if reading is not None else None  # its reader may close it meanwhile
        if taken is not None:
            with suppress(OSError):  # closed by its reader
                taken.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._idle is not None:
            self._idle.close()

    def read(self, start: int, end: int, buffer: memoryview) -> Iterator[memoryview]:
        """Bytes [start, end); raises ReadInterrupted, ModelChanged, StorageFailed."""
        self._url = self.sign()
        connection = self._idle or self.connections.connect(self._url)
        self._idle, self._reading = None, connection
        is_complete = False
        try:
            if self._is_aborted:
                raise ReadInterrupted("the load was cancelled")
            response = self._request(connection, start, end)
            while start < end:
                count = response.readinto(buffer[: end - start])
                if not count:
                    return
                start += count
                is_complete = start == end and response.isclosed()
                yield buffer[:count]
        except CONNECTION_ERRORS as error:
            raise ReadInterrupted(f"{type(error).__name__}: {error}") from error
        finally:
            self._reading = None
            if is_complete:
                self._idle = connection
            else:
                connection.close()

    def _request(
        self, connection: http.client.HTTPConnection, start: int, end: int
    ) -> http.client.HTTPResponse:
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        if self.etag:
            headers["If-Match"] = f'"{self.etag}"'
        connection.request("GET", self.connections.target(self._url), headers=headers)
        if self._is_aborted:  # while it connected, when there was no socket to shut
            raise ReadInterrupted("the load was cancelled")
        response = connection.getresponse()
        is_range = (start, end) == (0, self.size_bytes) or response.getheader("Content-Range")
        if response.status == PARTIAL_CONTENT or (
            response.status == http.HTTPStatus.OK and is_range  # rclone answers ranges with 200
        ):
            self._check_version(response, start, end)
            return response
        raise _error_of(response, urlsplit(self._url).path)

    def _check_version(self, response: http.client.HTTPResponse, start: int, end: int) -> None:
        """Compare ETag and range of the response, since not every server heeds `If-Match`."""
        etag = plain_etag(response.getheader("ETag", self.etag))
        expected = f"bytes {start}-{end - 1}/{self.size_bytes}"
        seen = response.getheader("Content-Range", expected)
        if etag != self.etag or seen != expected:
            raise ModelChanged(
                f"{unquote(urlsplit(self._url).path)} was replaced after it was listed:"
                f" wanted {expected} of {self.etag}, the server has {seen} of {etag}"
            )


def plain_etag(text: str) -> str:
    """An ETag without its quotes, which some servers leave out in listings."""
    return text.strip('"')


def _error_of(response: http.client.HTTPResponse, path: str) -> Exception:
    """The error for a response without the requested bytes.

    ReadInterrupted can be retried; ModelChanged: the object was replaced or deleted.
    """
    text = response.read(MAX_ERROR_BYTES).decode(errors="replace")
    code = re.search(r"<Code>([^<]*)</Code>", text)
    detail = f"{unquote(path)}: {response.status} {code[1] if code else response.reason}"
    if (
        response.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR
        or response.status in RETRYABLE_STATUSES
    ):
        return ReadInterrupted(detail)
    if response.status == http.HTTPStatus.OK:
        return StorageFailed(f"{detail}: the server does not send ranges")
    if response.status in {http.HTTPStatus.PRECONDITION_FAILED, http.HTTPStatus.NOT_FOUND}:
        return ModelChanged(f"{detail}: it was replaced or deleted after it was listed")
    return StorageFailed(f"{detail}: the object cannot be read")


DEFAULT_KEYS = ("default_s3", "default")
SECRET_FIELDS = {
    "endpoint_url": "AWS_ENDPOINT_URL",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_DEFAULT_REGION",
    "ca_bundle": "AWS_CA_BUNDLE",
    "verify_ssl": "S3_VERIFY_SSL",
    "anonymous": "awsAnonymousCredential",
}
GLOBAL_ENDPOINT = "https://s3.amazonaws.com"


@dataclass(frozen=True, slots=True)
class S3Options:
    """Differences from boto3's defaults; None leaves a field to boto3."""

    endpoint_url: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    region: str | None = None
    verify: bool | str = True
    """False: any certificate; a path: certificates of the trusted authorities."""
    is_anonymous: bool = False
    is_virtual_hosted: bool = False
    is_accelerated: bool = False
    hosts: frozenset[str] | None = None
    """Only public addresses and these hosts are connected to; None: any."""

    def __repr__(self) -> str:
        """The options without secrets."""
        return f"S3Options(endpoint_url={self.endpoint_url!r}, region={self.region!r})"


def options_for(bucket: str, environment: Mapping[str, str], secret_folder: str) -> S3Options:
    """The account, endpoint and certificates of a bucket, by the first source that covers it.

    These are the mounted secret `storage-config`; the same JSON in `STORAGE_CONFIG` (overridden by
    `STORAGE_OVERRIDE_CONFIG`); and the environment that KServe derives from a service account's
    secret. boto3's own chain supplies the rest. Source: KServe 0.21, `kserve_storage.py` and
    `pkg/credentials/s3`. Raises StorageFailed if a configuration cannot be read.
    """
    fields = _from_folder(bucket, secret_folder) or _from_variables(environment)
    return _options({**environment, **fields})


def options_without_pool(environment: Mapping[str, str], hosts: frozenset[str]) -> S3Options:
    """The options of a model's own environment: anonymous without keys, never boto3's chain."""
    found = options_for("", environment, "")
    has_keys = bool(found.access_key_id and found.secret_access_key) and not found.is_anonymous
    return replace(
        found,
        access_key_id=found.access_key_id if has_keys else None,
        secret_access_key=found.secret_access_key if has_keys else None,
        session_token=found.session_token if has_keys else None,
        is_anonymous=not has_keys,
        hosts=hosts,
    )


def _options(variables: Mapping[str, str]) -> S3Options:
    endpoint_url = variables.get("AWS_ENDPOINT_URL") or _endpoint_of_secret(variables)
    region = variables.get("AWS_DEFAULT_REGION") or None
    is_legacy = endpoint_url == GLOBAL_ENDPOINT and region not in {None, "us-east-1"}
    key_id = variables.get("AWS_ACCESS_KEY_ID") or None
    return S3Options(
        endpoint_url=endpoint_url,
        access_key_id=key_id,
        secret_access_key=variables.get("AWS_SECRET_ACCESS_KEY") or None,
        session_token=variables.get("AWS_SESSION_TOKEN") or None if key_id else None,
        region=region,
        verify=_verify(variables),
        is_anonymous=_is_true(variables.get("awsAnonymousCredential")),
        is_virtual_hosted=_is_true(variables.get("S3_USER_VIRTUAL_BUCKET")) or is_legacy,
        is_accelerated=_is_true(variables.get("S3_USE_ACCELERATE")),
    )


def _endpoint_of_secret(variables: Mapping[str, str]) -> str | None:
    """`S3_ENDPOINT` is a host, reached over plain HTTP if `S3_USE_HTTPS` is 0."""
    host = variables.get("S3_ENDPOINT")
    if not host:
        return None
    if "://" in host:
        return host
    return f"{'http' if variables.get('S3_USE_HTTPS') == '0' else 'https'}://{host}"


def _verify(variables: Mapping[str, str]) -> bool | str:
    if (variables.get("S3_VERIFY_SSL") or "1").lower() in {"0", "false"}:
        return False
    bundle = variables.get("AWS_CA_BUNDLE")
    if not bundle and variables.get("CA_BUNDLE_CONFIGMAP_NAME"):
        bundle = f"{variables.get('CA_BUNDLE_VOLUME_MOUNT_POINT', '')}/cabundle.crt"
    if not bundle:
        return True
    if not Path(bundle).is_file():
        raise StorageFailed(
            f"S3 cannot be used: there is no file {bundle!r}, named by AWS_CA_BUNDLE, ca_bundle"
            " of storage-config or CA_BUNDLE_CONFIGMAP_NAME"
        )
    return bundle


def _is_true(text: str | None) -> bool:
    return (text or "").lower() in {"1", "true"}


def _from_folder(bucket: str, folder: str) -> dict[str, str]:
    """Fields of the key whose `bucket` is this one, else of a default key, else none."""
    s3_secrets = _secrets(folder)
    for secret in s3_secrets.values():
        if secret.get("bucket") == bucket:
            return _variables(secret)
    for key in DEFAULT_KEYS:
        if key in s3_secrets:
            return _variables(s3_secrets[key])
    return {}


def _secrets(folder: str) -> dict[str, dict[str, Any]]:
    """Those of S3 in the mounted `storage-config`, by key."""
    if not folder or not Path(folder).is_dir():
        return {}
    secrets = {
        path.name.removesuffix(".json"): _parse(path.read_text(), f"storage-config key {path.name}")
        for path in sorted(Path(folder).iterdir())
        if path.is_file() and not path.name.startswith(".")
    }
    return {key: secret for key, secret in secrets.items() if secret.get("type", "s3") == "s3"}


def secret_bucket(key: str, environment: Mapping[str, str], folder: str) -> str:
    """The bucket that a key of `storage-config` names. Raises StorageFailed if it names none."""
    secret = _secrets(folder).get(key)
    if secret is None:
        secret = _parse(environment.get("STORAGE_CONFIG") or "{}", "STORAGE_CONFIG")
    bucket = secret.get("bucket")
    if secret.get("type", "s3") != "s3" or not isinstance(bucket, str) or not bucket:
        raise StorageFailed(
            f"the key {key!r} of storage-config names no bucket of S3: add `bucket` to it, or write"
            " storage.parameters.bucket in the InferenceService"
        )
    return bucket


def _from_variables(environment: Mapping[str, str]) -> dict[str, str]:
    secret = _parse(environment.get("STORAGE_CONFIG") or "{}", "STORAGE_CONFIG")
    secret |= _parse(environment.get("STORAGE_OVERRIDE_CONFIG") or "{}", "STORAGE_OVERRIDE_CONFIG")
    return _variables(secret) if secret.get("type") == "s3" else {}


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        secret = json.loads(text)
    except ValueError as error:
        raise StorageFailed(f"{name} must be a JSON object: {error}") from error
    if not isinstance(secret, dict):
        raise StorageFailed(f"{name} must be a JSON object, was {type(secret).__name__}")
    return secret


def _variables(secret: Mapping[str, Any]) -> dict[str, str]:
    """A secret's fields as environment variables; booleans may be JSON values or strings."""
    variables = {
        name: str(secret[field])
        for field, name in SECRET_FIELDS.items()
        if secret.get(field) is not None
    }
    if "AWS_ACCESS_KEY_ID" in variables:  # not the token of the environment's account
        variables.setdefault("AWS_SESSION_TOKEN", "")
    return variables
