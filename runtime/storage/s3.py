"""Models in an S3 bucket: `s3://bucket/prefix`.

boto3 lists, describes and signs; `s3_connections` reads the bytes in ranges. Every read is bound to
the listed version by its ETag, and S3's own checksum is compared if the object has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial as bind
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from runtime.errors import ModelChanged, ModelInvalid, StorageFailed
from runtime.storage.checksums import CRC32, S3_CHECKSUMS, Crc
from runtime.storage.listing import MAX_LISTED, RemoteFile, checked_listing
from runtime.storage.partial_file import PartialFile, split_spans
from runtime.storage.ranged_download import download_ranges
from runtime.storage.s3_connections import MAX_CONNECTIONS, S3Connections, plain_etag
from runtime.storage.s3_session import send_to_public_addresses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.config import _S3Dict
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import HeadObjectOutputTypeDef

    from runtime.storage.bandwidth import BandwidthUse
    from runtime.storage.s3_options import S3Options

MAX_ATTEMPTS = 5
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
PRESIGNED_URL_TTL_S = 900

TRANSFER_ERRORS = (BotoCoreError, ClientError, HTTPError, OSError)


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
        send_to_public_addresses(
            client,
            options.hosts,
            verify=options.verify,
            timeout_s=(CONNECT_TIMEOUT_S, read_timeout_s),
            max_connections=MAX_CONNECTIONS,
        )
    connections = S3Connections(
        verify=options.verify, timeout_s=read_timeout_s, hosts=options.hosts
    )
    return S3Access(client, connections)


class S3Storage:
    def __init__(self, uri: str, access: S3Access) -> None:
        self._uri = uri.rstrip("/")
        self._bucket, self._prefix = parse_s3_uri(uri)
        self._access = access

    def list_files(self) -> tuple[RemoteFile, ...]:
        """All objects in the folder that the prefix names; raises StorageFailed, ModelInvalid."""
        try:
            files = checked_listing(self._objects(), self._uri)
        except TRANSFER_ERRORS as error:
            raise StorageFailed(f"{self._uri} cannot be listed: {error}") from error
        if not files:
            raise StorageFailed(f"{self._uri} does not exist: no object has this prefix")
        return files

    def _objects(self) -> Iterator[RemoteFile]:
        folder = self._prefix + "/"
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

    def fetch(
        self, partial: PartialFile, bandwidth: BandwidthUse, *, head_only: bool = False
    ) -> None:
        file = partial.file
        name = f"{self._uri}/{file.path}"
        head = self._head(file, name)
        sign = bind(self._presigned_url, file)
        open_reader = bind(self._access.connections.reader, sign, file.version, file.size_bytes)
        download_ranges(open_reader, partial, bandwidth, name=name, head_only=head_only)
        if not head_only:
            _compare_checksum(head, partial, name)

    def _head(self, file: RemoteFile, name: str) -> HeadObjectOutputTypeDef:
        """S3's description of the object, by which boto3 also finds the bucket's region."""
        try:
            head = self._access.client.head_object(
                Bucket=self._bucket, Key=f"{self._prefix}/{file.path}", ChecksumMode="ENABLED"
            )
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                raise ModelChanged(f"{name} was deleted after it was listed") from error
            raise StorageFailed(f"{name} cannot be read: {error}") from error
        except TRANSFER_ERRORS as error:
            raise StorageFailed(f"{name} cannot be read: {error}") from error
        etag = plain_etag(head.get("ETag", file.version))
        if head["ContentLength"] != file.size_bytes or etag != file.version:
            raise ModelChanged(f"{name} was replaced after it was listed")
        return head

    def _presigned_url(self, file: RemoteFile) -> str:
        return self._access.client.generate_presigned_url(
            "get_object",
            Params={"Bucket": self._bucket, "Key": f"{self._prefix}/{file.path}"},
            ExpiresIn=PRESIGNED_URL_TTL_S,
        )


def parse_s3_uri(uri: str) -> tuple[str, str]:
    """Bucket and prefix; raises StorageFailed."""
    parts = urlsplit(uri)
    bucket, prefix = parts.netloc, parts.path.strip("/")
    if not bucket or not prefix:
        raise StorageFailed(f"storage URI {uri!r} must be s3://bucket/prefix")
    return bucket, prefix


def _compare_checksum(head: HeadObjectOutputTypeDef, partial: PartialFile, name: str) -> None:
    """Compare with S3's checksum of the whole object; a checksum of checksums is skipped."""
    if head.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return
    for field, crc in S3_CHECKSUMS.items():
        text = str(head.get(field, ""))
        if text and "-" not in text:
            expected, seen = crc.decode(text), _checksum(crc, partial)
            if seen != expected:
                raise ModelChanged(
                    f"{name} does not have the {crc.name} that S3 keeps for it:"
                    f" {seen:x}, not {expected:x}"
                )
            return


def _checksum(crc: Crc, partial: PartialFile) -> int:
    """The CRC-32 was computed during the download; another one needs the file read back."""
    if crc is CRC32:
        return partial.crc32()
    total = 0
    for span in split_spans(partial.file.size_bytes):
        total = crc.update(partial.read_back(span), total)
    return total
