"""Headers as they are on the wire, of HTTP/1.1 and HTTP/2."""

from typing import Final

Headers = list[tuple[bytes, bytes]]
"""Names in lower case, and values."""

HOP_BY_HOP: Final = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
        b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    )
)  # fmt: skip


def read_lines(lines: bytes) -> Headers:
    """Of lines `name: value`, as they were sent."""
    parts = [line.partition(b": ") for line in lines.split(b"\r\n")]
    return [(name, value) for name, colon, value in parts if colon]
