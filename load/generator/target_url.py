"""The target of a run: its address, and the paths and host headers that name a model there."""

import re
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

from load.errors import GeneratorError
from load.generator.settings import Layout, RequestProtocol

_HOST: Final = re.compile(r"[A-Za-z0-9._:-]+")
_PORTS: Final = {"http": 80, "https": 443, "grpc": 80, "grpcs": 443}


@dataclass(frozen=True, slots=True)
class TargetUrl:
    scheme: str
    host: str
    port: int
    path: str = ""
    """Prefix of every path, without a slash at its end."""

    @property
    def is_encrypted(self) -> bool:
        return self.scheme in ("https", "grpcs")

    @property
    def address(self) -> str:
        """Of the HTTP client."""
        return f"[{self.host}]:{self.port}"

    def tls(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if self.is_encrypted else None

    @property
    def authority(self) -> str:
        """Host and port for the `host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(url: str, *, is_grpc: bool) -> TargetUrl:
    """Parse a URL; the scheme is optional. Raises GeneratorError."""
    whole = url if "://" in url else f"{'grpc' if is_grpc else 'http'}://{url}"
    allowed = ("grpc", "grpcs", "http", "https") if is_grpc else ("http", "https")
    try:
        parts = urlsplit(whole)
        port = parts.port
    except ValueError as error:
        raise GeneratorError(f"--url {url!r}: {error}") from error
    if parts.scheme not in allowed or not parts.hostname or parts.query or parts.fragment:
        raise GeneratorError(f"--url must be such as {allowed[0]}://127.0.0.1:8080, was {url!r}")
    if parts.username is not None:
        raise GeneratorError("--url must not hold a user or password")
    number = port if port is not None else _PORTS[parts.scheme]
    return TargetUrl(parts.scheme, parts.hostname, number, parts.path.rstrip("/"))


def is_host(text: str) -> bool:
    """True if `text` is valid in a `host` header."""
    return _HOST.fullmatch(text) is not None


def host_headers(pattern: str | None, tenant: str, model: str) -> dict[str, str]:
    """The `host` header by a pattern such as `{model}.{tenant}.example.com`; empty without one."""
    if pattern is None:
        return {}
    return {"host": pattern.replace("{model}", model).replace("{tenant}", tenant)}


def inference_path(
    protocol: RequestProtocol, layout: Layout, *, tenant: str, model: str, is_generation: bool
) -> str:
    """The path of one request; for gRPC the name of the model."""
    name = _model_segment(layout, tenant, model)
    match protocol:
        case RequestProtocol.V1:
            path = f"/v1/models/{name}:predict"
        case RequestProtocol.V2:
            path = f"/v2/models/{name}/infer"
        case RequestProtocol.OPENAI:
            path = f"/openai/v1/{'completions' if is_generation else 'embeddings'}"
        case RequestProtocol.GRPC:
            return f"{tenant}~{model}" if layout is Layout.POD else model
    return _prefix(layout, tenant, model, is_openai=protocol is RequestProtocol.OPENAI) + path


def metadata_path(layout: Layout, *, tenant: str, model: str) -> str:
    """The path of a model's V2 metadata."""
    name = _model_segment(layout, tenant, model)
    return f"{_prefix(layout, tenant, model, is_openai=False)}/v2/models/{name}"


def _model_segment(layout: Layout, tenant: str, model: str) -> str:
    return quote(f"{tenant}~{model}", safe="~") if layout is Layout.POD else quote(model, safe="")


def _prefix(layout: Layout, tenant: str, model: str, *, is_openai: bool) -> str:
    if layout is Layout.GATEWAY:
        return f"/serving/{quote(tenant, safe='')}/{quote(model, safe='')}"
    if layout is Layout.POD and is_openai:
        return f"/serving/{_model_segment(layout, tenant, model)}"
    return ""
