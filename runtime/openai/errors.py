"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import math
from http import HTTPStatus

import orjson

from runtime.errors import ModelNotFound, PromptTooLong, RuntimePackageError, status_of
from runtime.openai.requests import InvalidField

TYPES = {
    HTTPStatus.BAD_REQUEST: "invalid_request_error",
    HTTPStatus.NOT_FOUND: "invalid_request_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "invalid_request_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "service_unavailable_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}
"""What OpenAI's clients know an error of each status by; others are `server_error`."""


def error_document(error: RuntimePackageError) -> dict[str, object]:
    """The body of an error, also as an event inside a stream."""
    param = error.param if isinstance(error, InvalidField) else None
    code = error.code if isinstance(error, InvalidField) else None
    if isinstance(error, ModelNotFound):
        param, code = "model", "model_not_found"
    if isinstance(error, PromptTooLong):
        code = "context_length_exceeded"
    kind = TYPES.get(status_of(error), "server_error")
    return {"error": {"message": str(error), "type": kind, "param": param, "code": code}}


def error_answer(
    error: RuntimePackageError,
) -> tuple[HTTPStatus, bytes, list[tuple[str, str]]]:
    """Status, body and headers of an error."""
    headers = [("content-type", "application/json")]
    if error.refusal is not None:
        headers.append(("x-pilotlight-not-executed", error.refusal))
    if error.retry_after_s is not None:
        headers.append(("retry-after", str(max(1, math.ceil(error.retry_after_s)))))
    return status_of(error), orjson.dumps(error_document(error)), headers
