"""Headers of requests and responses that some package names: all `x-`, `ce-` and known others."""

import re
from collections.abc import Iterator

from tests.surface.literals import Literal, names_in_packages
from tests.surface.recorded import assert_recorded

KNOWN = frozenset(
    {
        "accept-encoding", "cache-control", "content-disposition", "content-encoding",
        "content-length", "content-security-policy", "content-type", "etag", "grpc-message",
        "grpc-status", "grpc-timeout", "idempotency-key", "if-none-match",
        "inference-header-content-length", "last-event-id", "referrer-policy", "retry-after",
        "server-timing", "set-cookie", "traceparent", "tracestate", "transfer-encoding",
        "user-agent", "www-authenticate",
    }
)  # fmt: skip
WORDS = frozenset(
    {
        "accept", "allow", "authorization", "baggage", "connection", "cookie", "expect", "host",
        "keep-alive", "location", "origin", "prefer", "range", "upgrade", "vary",
    }
)  # fmt: skip
"""They mean other things, too: only bytes, what is read of `headers`, and beginnings of lines."""
_NAME = re.compile(r"(?<![a-z0-9:/._-])[a-z][a-z0-9]*(?:-[a-z0-9]+)*(?![a-z0-9_./])")
_LINE = re.compile(r"(?:^|\\n)([a-z-]+): ")


def _names(literal: Literal) -> Iterator[str]:
    text = literal.text.lower()
    for name in _NAME.findall(text.replace("\\r\\n", " ")):
        if name in KNOWN or name.startswith(("x-", "ce-")):
            yield name
    is_name = literal.before == "b" or literal.before.startswith("headers")
    yield from WORDS.intersection([*[text] * is_name, *_LINE.findall(text)])


def test_headers_are_as_recorded() -> None:
    assert_recorded("headers", names_in_packages(_names))
