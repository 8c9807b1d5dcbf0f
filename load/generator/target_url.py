"""The target of a run: its address as a URL gives it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from load.generator.errors import BadTarget

_HOST: Final = re.compile(r"[A-Za-z0-9._:-]+")
_PORTS: Final = {"http": 80, "https": 443, "grpc": 80, "grpcs": 443}


@dataclass(frozen=True, slots=True)
class TargetUrl:
    """Where requests go."""

    scheme: str
    host: str
    port: int
    path: str = ""
    """In front of every path, without a slash at its end."""

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is spoken."""
        return self.scheme in ("https", "grpcs")

    @property
    def authority(self) -> str:
        """Host and port for the `host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(url: str, *, is_grpc: bool) -> TargetUrl:
    """Read a URL; the scheme may be left out. Raises BadTarget."""
    whole = url if "://" in url else f"{'grpc' if is_grpc else 'http'}://{url}"
    allowed = ("grpc", "grpcs", "http", "https") if is_grpc else ("http", "https")
    try:
        parts = urlsplit(whole)
        port = parts.port
    except ValueError as error:
        raise BadTarget(f"--url {url!r}: {error}") from error
    if parts.scheme not in allowed or not parts.hostname or parts.query or parts.fragment:
        raise BadTarget(f"--url must be such as {allowed[0]}://127.0.0.1:8080, was {url!r}")
    if parts.username is not None:
        raise BadTarget("--url must not hold a user or password")
    number = port if port is not None else _PORTS[parts.scheme]
    return TargetUrl(parts.scheme, parts.hostname, number, parts.path.rstrip("/"))


def is_host(text: str) -> bool:
    """Whether it may stand in a `host` header."""
    return _HOST.fullmatch(text) is not None


def host_headers(pattern: str | None, tenant: str, model: str) -> dict[str, str]:
    """The `host` header that a pattern such as `{model}.{tenant}.example.com` makes, if any."""
    if pattern is None:
        return {}
    return {"host": pattern.replace("{model}", model).replace("{tenant}", tenant)}
