"""A hostile HTTP request, and the odd names and headers in its head."""

from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.hostile.mutations import ODD_NUMBERS

MODELS: Final = ("text", "embedder", "image", "chat", "t5", "rows")
"""Declared in the target, one of each kind."""


@dataclass(frozen=True)
class HttpRequest:
    """Sent to the gateway, or with `to_pod` to a pod directly."""

    content: bytes
    is_whole: bool
    """A server must respond; to others it may close the connection, or wait for the rest."""
    to_pod: bool = False


NAMES: SearchStrategy[str] = (
    st.sampled_from(MODELS)
    | st.sampled_from(
        ["", ".", "..", "x", "%2e%2e", "%2F", "a%00b", "%zz", "%", "~", "a~b", "T" * 300]
    )
    | st.sampled_from(
        ["default~text", "other~text", "text:predict", "text%3Apredict", "\xe9", "te xt"]
    )
)
HEADER_NAMES: Final = (
    "content-type", "content-encoding", "accept", "accept-encoding", "authorization", "x-api-key",
    "x-request-id", "x-pilotlight-deadline-ms", "x-pilotlight-policy", "x-pilotlight-seed",
    "x-pilotlight-simulate", "x-pilotlight-generation", "x-pilotlight-reservation",
    "x-pilotlight-load-token", "x-pilotlight-predict", "x-pilotlight-model-name",
    "x-pilotlight-stage", "x-pilotlight-resent", "inference-header-content-length", "connection",
    "expect", "te", "upgrade", "host", "range", "if-match", "traceparent", "x-forwarded-for",
    "k-network-probe", "cookie", "content-range", "x-http-method-override", "forwarded", "x",
)  # fmt: skip
_HEADER_VALUES: SearchStrategy[bytes] = (
    st.sampled_from(
        [
            b"",
            b" ",
            b"0",
            b"1",
            b"-1",
            b"nan",
            b"inf",
            b"1e999",
            b"0x10",
            b"9" * 30,
            b"5",
            b"close",
            b"keep-alive",
            b"100-continue",
            b"gzip",
            b"identity",
            b"application/json",
            b"text/plain",
            b"application/octet-stream",
            b"multipart/form-data; boundary=x",
            b"localhost:80",
            b"text.default.example.com",
            b"chat-default.example",
            b"127.0.0.1:1",
            b"infer",
            b"random",
            b"auto",
            b"remote-proxy",
            b"least-loaded",
            b"preprocess=0.01",
            b"Bearer x",
            b"Basic !",
            b"Bearer " + b"e30." * 3,
            b"\xff\xfe",
            b"x" * 300,
            b"h2c",
            b"websocket",
            b"a,b,c",
            b"*",
            b"\x00",
            b"chunked",
            b"trailers",
            b"bytes=0-1",
            b"..",
            b"default~text",
            b"%0d%0aX: y",
        ]
    )
    | st.sampled_from([str(number).encode() for number in ODD_NUMBERS])
    | st.binary(max_size=8).map(lambda value: value.replace(b"\r", b"").replace(b"\n", b""))
)
HEADERS = st.lists(
    st.tuples(st.sampled_from(HEADER_NAMES).map(str.encode), _HEADER_VALUES), max_size=3
)
POD_HEADERS = HEADERS.map(
    lambda headers: [each for each in headers if each[0] != b"x-pilotlight-resent"]
)
"""Without the gateway's own word that a pod may have begun the request: 502 is right then."""


def with_head(method: bytes, path: str, body: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    names = {name for name, _ in headers}
    lines = [b"%b %b HTTP/1.1" % (method, path.encode("latin-1", "replace").replace(b" ", b"%20"))]
    if b"host" not in names:
        lines.append(b"host: localhost")
    lines += [b"%b: %b" % header for header in headers]
    lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join([*lines, b"", b""]) + body


def is_plain(headers: list[tuple[bytes, bytes]]) -> bool:
    """No header changes where the message ends, or whether the server may drop it."""
    special = {b"expect", b"upgrade", b"connection", b"transfer-encoding", b"te"}
    return not special & {name for name, _ in headers}
