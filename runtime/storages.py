"""Opens the storage that a model's URI names."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from runtime.errors import StorageFailed
from runtime.storage_file import FileStorage
from runtime.storage_s3 import S3Storage, make_client

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

    from runtime.storage import ModelStorage


class Storages:
    """All storage systems of a pod, with the one S3 client that its downloads share."""

    def __init__(self) -> None:
        self._s3_client: S3Client | None = None
        self._lock = threading.Lock()

    def open(self, uri: str) -> ModelStorage:
        """The storage of a model; raises StorageFailed where the URI names none."""
        scheme = urlsplit(uri).scheme
        match scheme:
            case "s3":
                return S3Storage(uri, self._client())
            case "file":
                return FileStorage(uri)
            case _:
                raise StorageFailed(f"storage URI {uri!r} must begin with s3:// or file://")

    def _client(self) -> S3Client:
        """Made at first use, in the thread of a load: making one costs 0.1 s."""
        with self._lock:
            if self._s3_client is None:
                self._s3_client = make_client()
            return self._s3_client
