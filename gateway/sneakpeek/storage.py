"""Fetches the two files of a trained look from where `sneakPeek.uri` says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from gateway.sneakpeek.trained_file import ARRAYS, FACTS, InvalidSneakPeek

_MAX_BYTES: Final = 64 << 20
"""Of one file; the largest that `sneakpeek train` writes has some 3 MB."""


def fetch(uri: str, folder: Path) -> Path:
    """The folder that holds the files: the URI's own, or `folder` with copies.

    Raises InvalidSneakPeek.
    """
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return _checked(Path(unquote(parts.path)), uri)
    try:
        if parts.scheme == "s3":
            _from_s3(parts.netloc, unquote(parts.path).strip("/"), folder)
        else:
            _from_library(uri, folder)
    except Exception as error:  # whatever the libraries raise
        raise InvalidSneakPeek(f"{uri}: cannot be read: {error}") from error
    return _checked(folder, uri)


def _checked(folder: Path, uri: str) -> Path:
    for name in (ARRAYS, FACTS):
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            raise InvalidSneakPeek(f"{uri}: {name} cannot be read: {error.strerror}") from error
        if size > _MAX_BYTES:
            raise InvalidSneakPeek(f"{uri}: {name} may have {_MAX_BYTES} bytes, has {size}")
    return folder


def _from_s3(bucket: str, prefix: str, folder: Path) -> None:
    import boto3

    client: Any = boto3.client("s3", endpoint_url=os.environ.get("AWS_ENDPOINT_URL") or None)
    for name in (ARRAYS, FACTS):
        key = f"{prefix}/{name}" if prefix else name
        size = client.head_object(Bucket=bucket, Key=key)["ContentLength"]
        if size > _MAX_BYTES:
            raise InvalidSneakPeek(f"{name} may have {_MAX_BYTES} bytes, has {size}")
        client.download_file(bucket, key, str(folder / name))


def _from_library(uri: str, folder: Path) -> None:
    from kserve_storage import Storage

    Storage.download(uri, str(folder))
