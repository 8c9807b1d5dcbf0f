"""Models in an S3 bucket: `s3://bucket/prefix`, a folder, one object, or the whole bucket.

boto3 lists, describes and signs; `s3_connections` reads the bytes in ranges. Every read is bound to
the listed version by its ETag, and S3's own checksum is compared if the object has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial as bind
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from runtime.errors import ModelChanged, ModelInvalid, StorageFailed
from runtime.storage.bandwidth import BandwidthUse
from runtime.storage.checksums import CRC32, S3_CHECKSUMS, Crc
from runtime.storage.listing import MAX_LISTED, RemoteFile, checked_listing
from runtime.storage.partial_file import PartialFile, split_spans
from runtime.storage.ranged_download import download_ranges
from runtime.storage.s3_client import S3Access, s3_problem
from runtime.storage.s3_connections import plain_etag

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import HeadObjectOutputTypeDef


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

    def fetch(
        self, partial: PartialFile, bandwidth: BandwidthUse, *, head_only: bool = False
    ) -> None:
        file = partial.file
        name = f"{self._uri}/{file.path}"
        key, head = self._head(file, name)
        sign = bind(self._presigned_url, key)
        open_reader = bind(self._access.connections.reader, sign, file.version, file.size_bytes)
        download_ranges(open_reader, partial, bandwidth, name=name, head_only=head_only)
        if not head_only:
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
