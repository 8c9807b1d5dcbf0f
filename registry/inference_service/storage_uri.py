"""Where a model's files may be: the schemes of storage URIs, and which URIs are plain ones."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

LIBRARY_SCHEMES = ("gs", "hdfs", "hf", "http", "https", "modelscope", "oci", "webhdfs")
"""Storage that a library fetches whole; the runtime says which."""
STORAGE_SCHEMES = ("s3", "file", "pvc", *LIBRARY_SCHEMES)


def is_storage_uri(uri: str) -> bool:
    """Whether it names a place that a model can come from, and nothing else."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return False
    if parts.scheme not in STORAGE_SCHEMES or parts.query or parts.fragment:
        return False
    if not uri.isprintable():  # urlsplit drops line ends and tabs: it read something else
        return False
    if any(segment in ("..", ".") for segment in unquote(parts.path).split("/")):
        return False
    if "@" in parts.netloc:  # credentials belong into Secrets
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
