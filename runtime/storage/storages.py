"""Opens the storage system that a model's URI names."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from registry.inference_service.storage_uri import LIBRARY_SCHEMES, STORAGE_SCHEMES
from runtime.errors import StorageFailed
from runtime.storage.file import ClaimStorage, FileStorage
from runtime.storage.library import LibraryStorage
from runtime.storage.s3 import READ_TIMEOUT_S, S3Access, S3Storage, open_s3, parse_s3_uri
from runtime.storage.s3_options import S3Options, options_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.storage.bandwidth import BandwidthUse
    from runtime.storage.listing import RemoteFile
    from runtime.storage.partial_file import PartialFile


class ModelStorage(Protocol):
    """One model in one storage system. Methods block: they are called in threads."""

    def list_files(self) -> tuple[RemoteFile, ...]:
        """All files of the model; raises LoadFailed."""

    def fetch(
        self, partial: PartialFile, bandwidth: BandwidthUse, *, head_only: bool = False
    ) -> None:
        """Download the missing ranges of a file, or with `head_only` those of its first span.

        Raises LoadFailed, LoadCancelled, and OSError on a write error.
        """


@dataclass(frozen=True, slots=True)
class StorageOptions:
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    """Credentials and endpoints, by the conventions of boto3, KServe and the other libraries."""
    secret_folder: str = ""
    """Mount of KServe's secret `storage-config`; empty: none."""
    claim_mounts: Path = Path("/mnt/pvc")
    """Folder in which the PersistentVolumeClaims of `pvc://` are mounted, each under its name."""
    read_timeout_s: float = READ_TIMEOUT_S


class Storages:
    """All storage systems of a pod, with the connections that its downloads share."""

    def __init__(self, options: StorageOptions | None = None) -> None:
        self._options = options or StorageOptions()
        self._s3: dict[S3Options, S3Access] = {}
        self._lock = threading.Lock()

    def open(self, uri: str, staging: Path) -> ModelStorage:
        """The storage of a model; raises StorageFailed for an unknown scheme or a wrong URI.

        A library that fetches whole models writes to `staging`, which the caller deletes.
        """
        scheme = urlsplit(uri).scheme
        match scheme:
            case "s3":
                return S3Storage(uri, self._access(parse_s3_uri(uri)[0]))
            case "file":
                return FileStorage(uri)
            case "pvc":
                return ClaimStorage(uri, self._options.claim_mounts)
            case _ if scheme in LIBRARY_SCHEMES:
                return LibraryStorage(uri, staging, self._options.environment)
            case _:
                known = sorted(STORAGE_SCHEMES)
                raise StorageFailed(
                    f"storage URI {uri!r} must begin with one of"
                    f" {', '.join(f'{each}://' for each in known)}"
                )

    def close(self) -> None:
        """Close idle connections now, and the others after their read."""
        with self._lock:
            for access in self._s3.values():
                access.client.close()
                access.connections.close()
            self._s3.clear()

    def _access(self, bucket: str) -> S3Access:
        """A client, created at first use in the thread of a load: creating one takes 0.1 s."""
        options = options_for(bucket, self._options.environment, self._options.secret_folder)
        with self._lock:
            if options not in self._s3:
                self._s3[options] = open_s3(options, read_timeout_s=self._options.read_timeout_s)
            return self._s3[options]
