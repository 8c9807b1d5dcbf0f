"""The gRPC code of an HTTP status, by name: pods and gateways answer alike."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

CODE_OF_STATUS: Final[Mapping[int, str]] = {
    HTTPStatus.BAD_REQUEST: "INVALID_ARGUMENT",
    HTTPStatus.UNAUTHORIZED: "UNAUTHENTICATED",
    HTTPStatus.FORBIDDEN: "PERMISSION_DENIED",
    HTTPStatus.NOT_FOUND: "NOT_FOUND",
    HTTPStatus.REQUEST_TIMEOUT: "DEADLINE_EXCEEDED",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "RESOURCE_EXHAUSTED",
    HTTPStatus.TOO_MANY_REQUESTS: "RESOURCE_EXHAUSTED",
    HTTPStatus.NOT_IMPLEMENTED: "UNIMPLEMENTED",
    HTTPStatus.BAD_GATEWAY: "UNAVAILABLE",
    HTTPStatus.SERVICE_UNAVAILABLE: "UNAVAILABLE",
    HTTPStatus.GATEWAY_TIMEOUT: "DEADLINE_EXCEEDED",
    HTTPStatus.INSUFFICIENT_STORAGE: "FAILED_PRECONDITION",
}
OTHER: Final = "INTERNAL"
MAX_DETAIL_CHARACTERS: Final = 1000
"""Maximum length of an error's message: it is sent in a header, which gRPC limits to 8 KiB."""
MAX_NAME_CHARACTERS: Final = 512


def code_of(status: int) -> str:
    return CODE_OF_STATUS.get(status, OTHER)
