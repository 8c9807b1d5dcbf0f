"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from runtime.errors import ModelNotFound, PromptTooLong
from runtime.openai.requests import InvalidField
from runtime.protocols.response import answer_status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.protocols.response import Failure

TYPES: Mapping[int, str] = {
    HTTPStatus.BAD_REQUEST: "invalid_request_error",
    HTTPStatus.NOT_FOUND: "invalid_request_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "invalid_request_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "service_unavailable_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}
"""What OpenAI's clients know an error of each status by; others are `server_error`."""


def openai_error(error: Failure) -> object:
    """The body of an error, also as an event inside a stream."""
    param = error.param if isinstance(error, InvalidField) else None
    code = error.code if isinstance(error, InvalidField) else None
    if isinstance(error, ModelNotFound):
        param, code = "model", "model_not_found"
    if isinstance(error, PromptTooLong):
        code = "context_length_exceeded"
    kind = TYPES.get(answer_status(error), "server_error")
    return {"error": {"message": str(error), "type": kind, "param": param, "code": code}}
