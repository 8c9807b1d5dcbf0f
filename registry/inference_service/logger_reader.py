"""Reads `spec.predictor.logger`: the URL, mode and headers of a model's request log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from registry.domain.request_log import LogMode, RequestLog
from registry.shown_value import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_PATH: Final = "spec.predictor.logger"
_URL: Final = re.compile(r"http://[\x21-\x7e]{1,2000}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_MAX_HEADERS: Final = 32
_CREDENTIALS: Final = frozenset(("authorization", "cookie", "x-api-key", "x-pilotlight-secret"))
_FIELDS: Final = ("url", "mode", "metadataHeaders")


def read_logger(value: object, problems: list[str]) -> RequestLog | None:
    """The log; mistakes are added to `problems`, each a line about one field."""
    if value is None:
        return None
    if not isinstance(value, dict):
        problems.append(f"{_PATH} must be an object, was {shown(value)}")
        return None
    found: list[str] = [
        f"{_PATH}.{key} is not supported; an event has the whole body and {', '.join(_FIELDS)}"
        for key in sorted(map(str, value.keys() - set(_FIELDS)))
    ]
    url, mode = value.get("url"), value.get("mode") or LogMode.ALL.value
    if not _is_url(url):
        found.append(
            f"{_PATH}.url must be http://HOST[:PORT][/PATH], without user and fragment, was"
            f" {shown(url)}"
        )
    if mode not in list(LogMode):
        found.append(f"{_PATH}.mode must be one of {', '.join(LogMode)}, was {shown(mode)}")
    headers = _headers(value, found)
    problems += found
    if found:
        return None
    return RequestLog(str(url), LogMode(mode), headers)


def _is_url(value: object) -> bool:
    if not isinstance(value, str) or not _URL.fullmatch(value):
        return False
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        return False
    return bool(parts.hostname) and "@" not in parts.netloc and not parts.fragment and port != 0


def _headers(value: Mapping[str, Any], problems: list[str]) -> tuple[str, ...]:
    given = value.get("metadataHeaders") or []
    path = f"{_PATH}.metadataHeaders"
    if not isinstance(given, list) or len(given) > _MAX_HEADERS:
        problems.append(f"{path} must be a list of up to {_MAX_HEADERS}, was {shown(given)}")
        return ()
    for each in given:
        if not isinstance(each, str) or not _HEADER.fullmatch(each):
            problems.append(f"{path} must hold names of headers, held {shown(each)}")
        elif each.lower() in _CREDENTIALS:
            problems.append(f"{path} may not hold {each}, which has a credential: leave it out")
    return tuple(str(each).lower() for each in given)
