"""Storage URIs of models: the supported schemes, and which URIs are valid."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

LIBRARY_SCHEMES = ("gs", "hdfs", "hf", "http", "https", "modelscope", "oci", "webhdfs")
"""Schemes of which a library downloads the whole model; see `runtime.storage.storages`."""
STORAGE_SCHEMES = ("s3", "file", "pvc", *LIBRARY_SCHEMES)


def is_storage_uri(uri: str) -> bool:
    """Whether the scheme is supported, the path plain, without credentials, query or fragment."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return False
    if parts.scheme not in STORAGE_SCHEMES or parts.query or parts.fragment:
        return False
    if (
        "\\" in uri or not uri.isprintable()
    ):  # urlsplit drops line ends and tabs; others read \\ as /
        return False
    path = unquote(parts.path)
    if not path.isprintable() or any(segment in ("..", ".") for segment in path.split("/")):
        return False
    if "@" in parts.netloc:  # credentials belong in Secrets
        return False
    match parts.scheme:
        case "file":
            return parts.netloc == "" and parts.path.startswith("/")
        case "s3":
            return len(parts.netloc) >= 3
        case "hf":
            return parts.netloc != "" and parts.path.count("/") == 1 and parts.path != "/"
        case _:
            return parts.netloc not in ("", ".", "..")
