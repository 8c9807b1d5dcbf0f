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
