"""Models in an S3 bucket: `s3://bucket/prefix`.

boto3 lists, describes and signs; the bytes come over `s3_connections` in ranges. The version that
was listed is pinned by its ETag, and S3's own checksum is compared where the object has one.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from runtime.errors import ModelChanged, ModelInvalid, StorageFailed
from runtime.storage.checksums import CRC32, S3_CHECKSUMS
from runtime.storage.listing import MOST_LISTED, RemoteFile, checked_listing
from runtime.storage.partial_file import spans_of
from runtime.storage.ranged_download import fetch_ranges
from runtime.storage.s3_connections import MOST_CONNECTIONS, S3Connections, plain_etag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.config import _S3Dict
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import HeadObjectOutputTypeDef

    from runtime.storage.bandwidth import BandwidthUse
    from runtime.storage.checksums import Crc
    from runtime.storage.partial_file import PartialFile
    from runtime.storage.s3_connections import S3Reader
    from runtime.storage.s3_options import S3Options

ATTEMPTS = 5
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
URL_LIFE_S = 900

TRANSFER_ERRORS = (BotoCoreError, ClientError, HTTPError, OSError)


@dataclass(frozen=True, slots=True)
class S3Access:
    """What all downloads of an account share."""

    client: S3Client
    connections: S3Connections


def open_s3(options: S3Options, *, read_timeout_s: float = READ_TIMEOUT_S) -> S3Access:
    """Access by these options; raises StorageFailed where boto3 is misconfigured."""
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
                max_pool_connections=MOST_CONNECTIONS,
                retries={"mode": "standard", "max_attempts": ATTEMPTS},
                signature_version=UNSIGNED if options.is_anonymous else "s3v4",
                response_checksum_validation="when_required",
                s3=style or None,
            ),
        )
    except (BotoCoreError, ValueError) as error:
        raise StorageFailed(f"S3 cannot be used: {error}") from error
    return S3Access(client, S3Connections(verify=options.verify, timeout_s=read_timeout_s))


class S3Storage:
    """A model under a prefix of a bucket."""

    def __init__(self, uri: str, access: S3Access) -> None:
        self._uri = uri.rstrip("/")
        self._bucket, self._prefix = place_of(uri)
        self._access = access

    def list_files(self) -> tuple[RemoteFile, ...]:
        """All objects under the prefix, which counts as a folder."""
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
                if count > MOST_LISTED:
                    raise ModelInvalid(
                        f"{self._uri} has more than {MOST_LISTED} objects: name one model's folder"
                    )
                yield RemoteFile(path, item["Size"], plain_etag(item.get("ETag", "")))

    def fetch(
        self, file: RemoteFile, partial: PartialFile, link: BandwidthUse, *, head_only: bool = False
    ) -> None:
        """Bring the missing spans of one object; of a whole one, compare S3's checksum."""
        what = f"{self._uri}/{file.path}"
        head = self._head(file, what)
        fetch_ranges(_Object(self, file), partial, link, what=what, head_only=head_only)
        if not head_only:
            _compare_checksum(head, partial, what)

    def _head(self, file: RemoteFile, what: str) -> HeadObjectOutputTypeDef:
        """What S3 knows of the object; boto3 also learns here which region it is in."""
        try:
            head = self._access.client.head_object(
                Bucket=self._bucket, Key=self.key_of(file), ChecksumMode="ENABLED"
            )
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                raise ModelChanged(f"{what} was deleted after it was listed") from error
            raise StorageFailed(f"{what} cannot be read: {error}") from error
        except TRANSFER_ERRORS as error:
            raise StorageFailed(f"{what} cannot be read: {error}") from error
        etag = plain_etag(head.get("ETag", file.version))
        if head["ContentLength"] != file.size_bytes or etag != file.version:
            raise ModelChanged(f"{what} was replaced after it was listed")
        return head

    def key_of(self, file: RemoteFile) -> str:
        """The object's key."""
        return f"{self._prefix}/{file.path}"

    def sign(self, file: RemoteFile) -> str:
        """A URL of the object that is good for a while."""
        return self._access.client.generate_presigned_url(
            "get_object",
            Params={"Bucket": self._bucket, "Key": self.key_of(file)},
            ExpiresIn=URL_LIFE_S,
        )

    @contextmanager
    def reader(self, file: RemoteFile) -> Iterator[S3Reader]:
        """A reader of one object for one thread."""
        connections = self._access.connections
        with connections.reader(lambda: self.sign(file), file.version, file.size_bytes) as reader:
            yield reader


@dataclass(frozen=True, slots=True)
class _Object:
    """One object as a source of ranges."""

    storage: S3Storage
    file: RemoteFile

    @contextmanager
    def reader(self) -> Iterator[S3Reader]:
        with self.storage.reader(self.file) as reader:
            yield reader


def place_of(uri: str) -> tuple[str, str]:
    """Bucket and prefix of a storage URI; raises StorageFailed."""
    parts = urlsplit(uri)
    bucket, prefix = parts.netloc, parts.path.strip("/")
    if not bucket or not prefix:
        raise StorageFailed(f"storage URI {uri!r} must be s3://bucket/prefix")
    return bucket, prefix


def _compare_checksum(head: HeadObjectOutputTypeDef, partial: PartialFile, what: str) -> None:
    """Compare with S3's sum over the whole object; one over sums of parts says nothing here."""
    if head.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return
    for field, crc in S3_CHECKSUMS.items():
        text = str(head.get(field, ""))
        if text and "-" not in text:
            expected, seen = crc.decode(text), _sum_of(crc, partial)
            if seen != expected:
                raise ModelChanged(
                    f"{what} does not have the {crc.name} that S3 keeps for it:"
                    f" {seen:x}, not {expected:x}"
                )
            return


def _sum_of(crc: Crc, partial: PartialFile) -> int:
    """The CRC-32 was taken while the bytes came; another is taken from what was written."""
    if crc is CRC32:
        return partial.crc32()
    total = 0
    for span in spans_of(partial.file.size_bytes):
        total = crc.update(partial.read_back(span), total)
    return total
