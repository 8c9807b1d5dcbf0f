"""Where a model's requests and responses are sent as CloudEvents: KServe's `logger`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class LogMode(StrEnum):
    """What is sent, as KServe names it."""

    ALL = "all"
    REQUEST = "request"
    RESPONSE = "response"


@dataclass(frozen=True, slots=True)
class RequestLog:
    url: str
    """`http://HOST[:PORT][/PATH]`."""
    mode: LogMode = LogMode.ALL
    headers: tuple[str, ...] = ()
    """Headers of the request, in lower case, that go with each event."""


def decode_request_log(stored: dict[str, Any] | None) -> RequestLog | None:
    """As it is in JSON; None: the model's requests are not logged."""
    if stored is None:
        return None
    return RequestLog(stored["url"], LogMode(stored["mode"]), tuple(stored["headers"]))
