"""Account, endpoint and certificates of an S3 bucket, by KServe's conventions.

The first of three sources that covers the bucket is used: the secret `storage-config`, mounted as a
folder with one JSON object per key; the same JSON in `STORAGE_CONFIG` (overridden by
`STORAGE_OVERRIDE_CONFIG`); the environment that KServe derives from a service account's secret.
boto3's own chain supplies the rest. Names and meanings are those of KServe 0.21,
`kserve_storage.py` and `pkg/credentials/s3`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runtime.errors import StorageFailed

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
    """The options of a bucket; raises StorageFailed if a configuration cannot be read."""
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
    if not folder or not Path(folder).is_dir():
        return {}
    secrets = {
        path.name.removesuffix(".json"): _parse(path.read_text(), f"storage-config key {path.name}")
        for path in sorted(Path(folder).iterdir())
        if path.is_file() and not path.name.startswith(".")
    }
    s3_secrets = {
        key: secret for key, secret in secrets.items() if secret.get("type", "s3") == "s3"
    }
    for secret in s3_secrets.values():
        if secret.get("bucket") == bucket:
            return _variables(secret)
    for key in DEFAULT_KEYS:
        if key in s3_secrets:
            return _variables(s3_secrets[key])
    return {}


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
