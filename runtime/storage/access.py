"""How a pod reads a model's storage: with whose credentials, and from which hosts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from registry.inference_service.tenant_rules import EVERY, Access, TenantRules, access_problem
from runtime.errors import StorageFailed
from runtime.storage.namespace_secrets import ModelCredentials, NamespaceSecrets
from runtime.storage.public_addresses import host_of, operator_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from registry.domain.model import ModelSpec

_FROM_POOL: Final = (
    "PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR", "HF_ENDPOINT",
    "HF_HUB_OFFLINE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CA_BUNDLE_CONFIGMAP_NAME",
    "CA_BUNDLE_VOLUME_MOUNT_POINT", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
    "https_proxy", "no_proxy",
)  # fmt: skip
"""Variables of the pod that hold no credentials, for a download with a model's own."""
_S3_FROM_POOL: Final = ("AWS_ENDPOINT_URL", "S3_ENDPOINT", "S3_USE_HTTPS", "AWS_DEFAULT_REGION",
                        "AWS_REGION", "S3_VERIFY_SSL", "AWS_CA_BUNDLE",
                        "S3_USER_VIRTUAL_BUCKET")  # fmt: skip
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL", "S3_ENDPOINT", "S3_USE_HTTPS")
_WEB_SCHEMES: Final = frozenset({"http", "https", "webhdfs", "hdfs", "oci"})
"""Schemes whose URI names the host."""


@dataclass(frozen=True, slots=True)
class StorageAccess:
    """The environment of one model's downloads, and the hosts they may connect to."""

    environment: Mapping[str, str] = field(repr=False)
    is_pool: bool
    """Whether the environment is the pool's own."""
    hosts: frozenset[str] | None = None
    """Only public addresses and these hosts; None: any."""
    folder: str = ""
    """Of file://, or of pvc:// below the mounts: nothing outside it is read; empty: any."""
    google: str = field(default="", repr=False)
    """A file of Google's credentials."""
    credentials: str = ""
    """For messages: what was used."""


def storage_access(
    spec: ModelSpec,
    rules: TenantRules | None,
    environment: Mapping[str, str],
    secrets: NamespaceSecrets | None,
) -> StorageAccess:
    """The access of a model by the pool's rules; None: the pool has one owner, who may do anything.

    Raises StorageFailed if the rules forbid the model, or its credentials cannot be read.
    """
    if rules is None:
        return StorageAccess(environment, is_pool=True)
    if reader_of(spec, rules) == "":
        return _pool_access(spec, rules, environment)
    return _model_access(spec, environment, secrets)


def reader_of(spec: ModelSpec, rules: TenantRules | None) -> str:
    """Who reads a model's storage: empty for the pool, else names the model's own credentials.

    Raises StorageFailed if the rules forbid the model.
    """
    access = Access.POOL if rules is None else rules.access(spec)
    if rules is not None and access is None:
        raise StorageFailed(access_problem(spec, rules, spec.pool) or "not granted")
    return f"model:{spec.credentials}" if access is Access.MODEL else ""


def _pool_access(
    spec: ModelSpec, rules: TenantRules, environment: Mapping[str, str]
) -> StorageAccess:
    prefix = rules.granting_prefix(spec.name.namespace, spec.storage_uri) or EVERY
    scheme = urlsplit(spec.storage_uri).scheme
    if scheme in _WEB_SCHEMES:
        named = frozenset({host_of(prefix)} if prefix != EVERY else ()) - {""}
        hosts = operator_hosts(environment) | named
        return StorageAccess(environment, is_pool=True, hosts=hosts)
    return StorageAccess(environment, is_pool=True, folder=_granted_folder(scheme, prefix))


def _granted_folder(scheme: str, prefix: str) -> str:
    if scheme not in {"file", "pvc"} or prefix == EVERY:
        return ""
    parts = urlsplit(prefix)
    return parts.netloc + unquote(parts.path)


def _model_access(
    spec: ModelSpec, environment: Mapping[str, str], secrets: NamespaceSecrets | None
) -> StorageAccess:
    found = ModelCredentials()
    if spec.credentials:
        if secrets is None:
            raise StorageFailed(
                f"the model names its own credentials ({spec.credentials}), which pods read from"
                " the Kubernetes API server with a token of their service account: set"
                " automountServiceAccountToken in the pool's InferenceService"
            )
        found = secrets.read(spec.name.namespace, spec.credentials)
    names = (*_FROM_POOL, *(_S3_FROM_POOL if urlsplit(spec.storage_uri).scheme == "s3" else ()))
    base = {name: environment[name] for name in names if name in environment}
    if found.variables.keys() & set(_ENDPOINTS):
        for name in _ENDPOINTS:
            base.pop(name, None)
    return StorageAccess(
        {**base, **found.variables},
        is_pool=False,
        hosts=operator_hosts(environment),
        google=found.google,
        credentials=spec.credentials or "no credentials",
    )
