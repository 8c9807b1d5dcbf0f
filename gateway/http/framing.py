"""Whether a request's bytes are HTTP/1.1 that the gateway reads, and the refusals of what is not.

The parser checks the syntax; lengths, codings, the Host and the texts of refusals are here.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from common.shown_value import shown
from gateway.http.headers import Headers, ReadHeads, RequestHeaders

MAX_HEAD_BYTES: Final = 64 * 1024
"""Request line and headers together, trailers, or one chunk's extensions.

Of headers behind another request, one read of the socket may exceed it before it is checked.
"""
MAX_TARGET_BYTES: Final = 32 * 1024
"""Of the head: the request target, which is a path and a query."""
_LINE_BYTES: Final = 4
"""Of a header line beside name and value: a colon, a blank and the line's end."""
_REASONS: Final = {
    400: b"bad-request",
    414: b"target-too-long",
    431: b"head-too-long",
    501: b"not-implemented",
}
MAX_HOST_BYTES: Final = 255
MAX_LABEL_BYTES: Final = 63
_ABSOLUTE_FORM: Final = re.compile(
    rb"https?://((?:\[[0-9a-f:.]+\]|[^/?#@\[\]:]+)(?::[0-9]*)?)(/[^#]*|\?[^#]*)?", re.IGNORECASE
)
"""The host may be an IPv6 address in brackets."""


@dataclass(slots=True)
class KnownHead:
    """What the parser has read from a request's head: the same bytes need not be parsed again.

    Of a usual request of HTTP/1.1 with a `content-length`, whose connection is kept alive.
    """

    path: bytes
    host: bytes
    headers: Headers
    content_length: int
    read: RequestHeaders | None = None
    """What `read_headers` reads from it, once it has; without an id if the client gave none."""
    route: Any = None
    """What follows from it for requests to warm models (`gateway.dispatch.warm_route`)."""


class KnownHeads(ReadHeads[KnownHead]):
    """Heads of inference requests. Most clients repeat theirs, but for the length."""

    def keep(
        self, head: bytes, path: bytes, host: bytes, headers: Headers, content_length: int
    ) -> None:
        """Keep one whose request was sent in one piece, unless it bears an id, or much else.

        `content_length`: what came behind it. It must be the body, and nothing else.
        """
        known = dict(headers)
        if b"x-request-id" in known:
            return
        if int(known.get(b"content-length", -1)) != content_length:
            return
        self.put(head, KnownHead(path, host, headers, content_length), len(headers))


class InvalidFraming(Exception):
    """Ends parsing: of what the client has sent and sends, nothing more is read."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self._status = status

    @property
    def response(self) -> bytes:
        content = orjson.dumps({"error": str(self)})
        return b"".join(
            (
                STATUS_LINE[self._status],
                b"content-type: application/json\r\nx-pilotlight-reason: ",
                _REASONS[self._status],
                b"\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(content),
                content,
            )
        )


def target_too_long(byte_count: int) -> InvalidFraming:
    """`byte_count`: of the part that was received."""
    return InvalidFraming(
        f"the request target may have {MAX_TARGET_BYTES} bytes, had {byte_count} or more", 414
    )


def head_too_long(byte_count: int) -> InvalidFraming:
    return InvalidFraming(
        "request line and headers, trailers or a chunk's extensions may have"
        f" {MAX_HEAD_BYTES} bytes, had {byte_count}",
        431,
    )


def check_length(headers: Headers, target: bytes) -> None:
    """Check a complete head. Raises InvalidFraming."""
    lines = sum(len(name) + len(value) + _LINE_BYTES for name, value in headers)
    if len(target) + lines > MAX_HEAD_BYTES:
        raise head_too_long(len(target) + lines)


def check_coding(value: bytes) -> None:
    """Check a head's `transfer-encoding`. Raises InvalidFraming.

    The parser looks at the last coding alone, and would take the others' output for the body
    (RFC 9112, section 6.1).
    """
    if value.rstrip(b" ").lower() != b"chunked":
        raise InvalidFraming(
            f"header transfer-encoding must be 'chunked' and nothing else, was {shown(value)}", 501
        )


def not_http(headers: Headers, *, is_in_body: bool) -> InvalidFraming:
    """For what the parser refused; `headers` are those that it has read."""
    if is_in_body:
        return InvalidFraming(
            "the body is not valid HTTP/1.1: a chunk is its length in hexadecimal digits, its bytes"
            " and a CRLF behind both; behind the last one are header lines, if any, and a CRLF"
        )
    if headers:
        return InvalidFraming(
            "the headers are not valid HTTP/1.1: each is 'name: value' in one line with CRLF at its"
            " end; there is one content-length in digits, or one transfer-encoding, not both; the"
            f" last valid header was {shown(headers[-1][0])}"
        )
    return InvalidFraming(
        "the request is not valid HTTP/1.1: it begins with 'METHOD TARGET HTTP/1.1' and CRLF, with"
        " a known method and a target of visible ASCII characters; then come lines 'name: value'"
    )


def split_absolute_form(target: bytes) -> tuple[bytes, bytes] | None:
    """Host and path of a target such as `http://host/path`, which clients send to proxies.

    None for other targets that have no leading slash (RFC 9112, section 3.2.2).
    """
    match = _ABSOLUTE_FORM.fullmatch(target)
    if match is None:
        return None
    path = match[2] or b"/"
    return match[1], path if path.startswith(b"/") else b"/" + path


def host_error(host: bytes, count: int, *, is_required: bool) -> str | None:
    """What is wrong with the last of `count` Host headers; None if nothing is.

    There is exactly one, and short (RFC 9112, section 3.2; RFC 1035, 2.3.4).
    """
    if count != 1 and (count or is_required):
        return f"a request must have exactly one host header, had {count}"
    if len(host) > MAX_HOST_BYTES:
        return f"header host may have {MAX_HOST_BYTES} bytes, has {len(host)}"
    if len(host) > MAX_LABEL_BYTES:
        longest = max(map(len, host.partition(b":")[0].split(b".")))
        if longest > MAX_LABEL_BYTES:
            return f"a label of header host may have {MAX_LABEL_BYTES} bytes, has {longest}"
    return None


def head_without_upgrade(parser: Any, target: bytes, headers: Headers) -> bytes:
    """The head that was just parsed without its offer to upgrade (RFC 9110, section 7.8).

    The parser treats the bytes after such a head as another protocol, and later as another
    request, even where they are the request's body.
    """
    method, version = parser.get_method(), parser.get_http_version().encode()
    lines = [b"%b %b HTTP/%b\r\n" % (method, target, version)]
    lines += [b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade"]
    return b"".join(lines) + b"\r\n"
