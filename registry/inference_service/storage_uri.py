"""Storage URIs of models: the supported schemes, and which URIs are valid."""

from urllib.parse import unquote, urlsplit

LIBRARY_SCHEMES = ("gs", "hdfs", "hf", "http", "https", "modelscope", "oci", "webhdfs")
"""Schemes of which a library downloads the whole model; see `runtime.storage.storages`."""
STORAGE_SCHEMES = ("s3", "file", "pvc", *LIBRARY_SCHEMES)
_SCHEMES = f"begin with one of {', '.join(f'{scheme}://' for scheme in STORAGE_SCHEMES)}"


def storage_uri_rule(uri: object) -> str | None:
    """The rule that a URI of a model breaks, as what follows "must"; None if it is valid."""
    if not isinstance(uri, str):
        return _SCHEMES
    try:
        parts = urlsplit(uri)
    except ValueError:
        return f"be a URI, and {_SCHEMES}"
    if parts.scheme not in STORAGE_SCHEMES:
        return _SCHEMES
    if parts.query or parts.fragment:
        return "have no query and no fragment (? and #)"
    path = unquote(parts.path)
    # urlsplit drops line ends and tabs; others read \\ as /
    if "\\" in uri or not (uri.isprintable() and path.isprintable()):
        return "have no backslash and no character that cannot be printed"
    if any(segment in ("..", ".") for segment in path.split("/")):
        return "have no . or .. in its path"
    if "@" in parts.netloc:
        return "have no credentials (they belong in a Secret, or the environment of the pods)"
    return _place_rule(parts.scheme, parts.netloc, parts.path)


def _place_rule(scheme: str, place: str, path: str) -> str | None:
    match scheme:
        case "file" if place or not path.startswith("/"):
            return "be an absolute path with three slashes, as file:///models/mine"
        case "s3" if len(place) < 3:
            return "name a bucket of at least 3 characters, as s3://models/mine"
        case "hf" if not place or path.count("/") != 1 or path == "/":
            return "be hf://ORGANISATION/NAME"
        case _ if scheme not in ("file", "s3", "hf") and place in ("", ".", ".."):
            return f"name a host, bucket or claim after {scheme}://"
    return None
