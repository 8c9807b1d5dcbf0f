"""The Host header of a request: exactly one, and short (RFC 9112, section 3.2; RFC 1035, 2.3.4)."""

from __future__ import annotations

import re
from typing import Final

MAX_HOST_BYTES: Final = 255
MAX_LABEL_BYTES: Final = 63
_ABSOLUTE_FORM: Final = re.compile(
    rb"https?://((?:\[[0-9a-f:.]+\]|[^/?#@\[\]:]+)(?::[0-9]*)?)(/[^#]*|\?[^#]*)?", re.IGNORECASE
)
"""The host may be an IPv6 address in brackets."""


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
    """What is wrong with the last of `count` Host headers; None if nothing is."""
    if count != 1 and (count or is_required):
        return f"a request must have exactly one host header, had {count}"
    if len(host) > MAX_HOST_BYTES:
        return f"header host may have {MAX_HOST_BYTES} bytes, has {len(host)}"
    if len(host) > MAX_LABEL_BYTES:
        longest = max(map(len, host.partition(b":")[0].split(b".")))
        if longest > MAX_LABEL_BYTES:
            return f"a label of header host may have {MAX_LABEL_BYTES} bytes, has {longest}"
    return None
