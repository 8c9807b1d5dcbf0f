"""Models in an S3 bucket: `s3://bucket/prefix`, credentials and endpoint by boto3's own chain."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from runtime.errors import ModelInvalid, StorageFailed
from runtime.metrics import DOWNLOADED_BYTES
from runtime.storage import CHUNK_BYTES, MOST_FILES, RemoteFile, allocate, checked_listing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef

    from runtime.link import LinkRate

LEAST_RANGE_BYTES = 64 * 1024**2
"""Smaller ranges gain nothing on S3, and S3 servers for development copy the object for each."""
MOST_RANGES = 8
RANGES_AT_ONCE = 4
ONE_GET_BYTES = 256 * 1024**2
ATTEMPTS = 3
MOST_CONNECTIONS = 64

TRANSFER_ERRORS = (BotoCoreError, ClientError, HTTPError, OSError)


def make_client() -> S3Client:
    """A client for all threads of a process; raises StorageFailed where boto3 is misconfigured."""
    try:
        return boto3.session.Session().client(
            "s3",
            config=Config(
                connect_timeout=5,
                read_timeout=60,
                max_pool_connections=MOST_CONNECTIONS,
                retries={"mode": "standard", "max_attempts": ATTEMPTS},
                response_checksum_validation="when_required",
            ),
        )
    except (BotoCoreError, ValueError) as error:
        raise StorageFailed(f"S3 cannot be used: {error}") from error


class S3Storage:
    """A model under a prefix of a bucket."""

    def __init__(self, uri: str, client: S3Client) -> None:
        parts = urlsplit(uri)
        self._uri = uri.rstrip("/")
        self._bucket = parts.netloc
        self._prefix = parts.path.strip("/")
        if not self._bucket or not self._prefix:
            raise StorageFailed(f"storage URI {uri!r} must be s3://bucket/prefix")
        self._client = client

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
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=folder
        )
        count = 0
        for page in pages:
            for item in page.get("Contents", []):
                path = item["Key"].removeprefix(folder)
                if not path or path.endswith("/"):
                    continue
                count += 1
                if count > 10 * MOST_FILES:
                    raise ModelInvalid(f"{self._uri} has more than {10 * MOST_FILES} objects")
                yield RemoteFile(path, item["Size"], item.get("ETag", ""))

    def fetch(self, file: RemoteFile, target: Path, link: LinkRate) -> None:
        """Write one object to `target`: one GET, or several large ranges side by side."""
        ranges = split_into_ranges(file.size_bytes)
        with target.open("wb") as sink:
            allocate(sink.fileno(), file.size_bytes)
            if len(ranges) == 1:
                self._fetch_range(file, ranges[0], sink.fileno(), link)
            else:
                with ThreadPoolExecutor(RANGES_AT_ONCE) as pool:
                    parts = [
                        pool.submit(self._fetch_range, file, part, sink.fileno(), link)
                        for part in ranges
                    ]
                    for part in parts:
                        part.result()
            os.fsync(sink.fileno())

    def _fetch_range(
        self, file: RemoteFile, part: tuple[int, int], descriptor: int, link: LinkRate
    ) -> None:
        """Fetch bytes [start, end), again from where it broke off, a few times."""
        start, end = part
        failure: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                start = self._stream(file, (start, end), descriptor, link)
            except _BrokenOff as broken:
                failure, start = broken, broken.at
            if start >= end:
                return
        raise StorageFailed(
            f"{self._uri}/{file.path} broke off at byte {start} of {file.size_bytes}"
        ) from failure

    def _stream(
        self, file: RemoteFile, part: tuple[int, int], descriptor: int, link: LinkRate
    ) -> int:
        start, end = part
        if start >= end:
            return end
        try:
            answer = self._get(file, start, end)
        except TRANSFER_ERRORS as error:
            raise StorageFailed(f"{self._uri}/{file.path} cannot be fetched: {error}") from error
        try:
            for chunk in answer["Body"].iter_chunks(CHUNK_BYTES):
                link.take(len(chunk))
                os.pwrite(descriptor, chunk[: end - start], start)
                DOWNLOADED_BYTES.inc(len(chunk))
                start += len(chunk)
        except TRANSFER_ERRORS as error:
            raise _BrokenOff(start) from error
        return start

    def _get(self, file: RemoteFile, start: int, end: int) -> GetObjectOutputTypeDef:
        """Ask for bytes [start, end) of the version that was listed."""
        key, version = f"{self._prefix}/{file.path}", file.version or "*"
        if (start, end) == (0, file.size_bytes):
            return self._client.get_object(Bucket=self._bucket, Key=key, IfMatch=version)
        return self._client.get_object(
            Bucket=self._bucket, Key=key, IfMatch=version, Range=f"bytes={start}-{end - 1}"
        )


class _BrokenOff(Exception):
    """The connection ended early; bytes before `at` are written."""

    def __init__(self, at: int) -> None:
        super().__init__(f"broke off at byte {at}")
        self.at = at


def split_into_ranges(size_bytes: int) -> list[tuple[int, int]]:
    """Equal ranges [start, end) of 64 MiB or more each; one where a single GET does."""
    count = max(1, min(MOST_RANGES, size_bytes // LEAST_RANGE_BYTES))
    if size_bytes <= ONE_GET_BYTES:
        count = 1
    step = -(-size_bytes // count) if size_bytes else 0
    return [(begin * step, min((begin + 1) * step, size_bytes)) for begin in range(count)]
