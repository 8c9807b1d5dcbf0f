"""Opens the storage system that a model's URI names."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from registry.domain.model import ModelSpec
from registry.domain.tenant_rules import Quota, TenantRules
from registry.inference_service.documents import LIBRARY_SCHEMES, SECRET_BUCKET, STORAGE_SCHEMES
from runtime.errors import StorageFailed
from runtime.storage.access import NamespaceSecrets, StorageAccess, reader_of, storage_access
from runtime.storage.file import ClaimStorage, FileStorage, fetched_folder, mounted_model
from runtime.storage.listing import MAX_WEIGHT_BYTES, RemoteFile
from runtime.storage.load_priority import LoadTicket
from runtime.storage.partial_file import PartialFile
from runtime.storage.ranged_download import BandwidthUse
from runtime.storage.s3 import READ_TIMEOUT_S, S3Access, S3Storage, open_s3, parse_s3_uri
from runtime.storage.s3_connections import (
    S3Options,
    options_for,
    options_without_pool,
    secret_bucket,
)

MAX_CLIENTS = 64
"""Credentials of models change, and their old clients are not used again."""


class ModelStorage(Protocol):
    """One model in one storage system. Methods block: they are called in threads."""

    def list_files(self) -> tuple[RemoteFile, ...]:
        """All files of the model; raises LoadFailed."""

    def read_start(self, file: RemoteFile, size: int) -> bytes:
        """The first bytes of a file, at most its own; raises LoadFailed."""

    def fetch(self, partial: PartialFile, bandwidth: BandwidthUse, readers: int) -> None:
        """Download the missing ranges of a file, at most so many at once.

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
    rules: Callable[[], TenantRules | None] = lambda: None
    """What each namespace may read now; None: everything, for the machine's one owner."""
    secrets: NamespaceSecrets | None = None
    """Reads credentials in models' own namespaces; None: outside of clusters."""


class Storages:
    """All storage systems of a pod, with the connections that its downloads share."""

    def __init__(self, options: StorageOptions | None = None) -> None:
        self._options = options or StorageOptions()
        self._s3: dict[S3Options, S3Access] = {}
        self._lock = threading.Lock()

    def reader(self, spec: ModelSpec) -> str:
        """Who reads a model, by the pool's rules: empty for the pool, else names its credentials.

        Raises StorageFailed where they forbid the model.
        """
        return reader_of(spec, self._options.rules())

    def open(
        self, spec: ModelSpec, staging: Path, ticket: LoadTicket | None = None
    ) -> ModelStorage:
        """The storage of a model.

        A library fetches the whole model now, into `staging`, which the caller deletes, unless the
        ticket is cancelled. Raises StorageFailed for an unknown scheme, a wrong URI, or one that
        the pool's rules forbid, and LoadFailed, LoadCancelled if the library's fetch ends.
        """
        options, uri, rules = self._options, spec.storage_uri, self._options.rules()
        access = storage_access(spec, rules, options.environment, options.secrets)
        scheme = urlsplit(uri).scheme
        if access.is_pool and (found := mounted_model(spec, options.claim_mounts)) is not None:
            return found
        match scheme:
            case "s3":
                if f"//{SECRET_BUCKET}/" in uri:
                    key = spec.credentials.rpartition("/")[2]
                    folder = options.secret_folder if access.is_pool else ""
                    bucket = secret_bucket(key, access.environment, folder)
                    uri = uri.replace(SECRET_BUCKET, bucket, 1)
                s3 = self._s3_access(parse_s3_uri(uri)[0], access)
                return S3Storage(uri, s3, is_exact=rules is not None)
            case "file":
                return FileStorage(uri, Path(access.folder) if access.folder else None)
            case "pvc":
                mounts = self._options.claim_mounts
                return ClaimStorage(uri, mounts, mounts / access.folder if access.folder else None)
            case _ if scheme in LIBRARY_SCHEMES:
                max_bytes = self._max_bytes(spec)
                return fetched_folder(
                    uri, staging, access, spec.format, max_bytes=max_bytes, ticket=ticket
                )
            case _:
                known = sorted(STORAGE_SCHEMES)
                raise StorageFailed(
                    f"storage URI {uri!r} must begin with one of"
                    f" {', '.join(f'{each}://' for each in known)}"
                )

    def close(self) -> None:
        """Close the idle connections of clients."""
        with self._lock:
            for access in self._s3.values():
                access.client.close()
            self._s3.clear()

    def _max_bytes(self, spec: ModelSpec) -> int:
        """Of a library's download, whose size is unknown before."""
        rules = self._options.rules() or TenantRules()
        quota = rules.quota(spec.name.namespace, Quota.CACHE)
        return MAX_WEIGHT_BYTES if quota is None else min(quota, MAX_WEIGHT_BYTES)

    def _s3_access(self, bucket: str, access: StorageAccess) -> S3Access:
        """A client, created at first use in the thread of a load: creating one takes 0.1 s."""
        if access.is_pool:
            options = options_for(bucket, access.environment, self._options.secret_folder)
        else:
            options = options_without_pool(access.environment, access.hosts or frozenset())
        with self._lock:
            found = self._s3.pop(options, None)
            if found is None:
                found = open_s3(options, read_timeout_s=self._options.read_timeout_s)
            self._s3[options] = found  # the last used is last
            if len(self._s3) > MAX_CLIENTS:
                del self._s3[next(iter(self._s3))]
            return found
