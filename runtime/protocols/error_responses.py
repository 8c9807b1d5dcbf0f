"""Errors as responses: status, body and headers, in a protocol's form."""

from __future__ import annotations

import math
from collections.abc import Callable

import orjson

from common.content_coding import ACCEPTED
from common.inference_protocol.errors import PodError
from runtime.errors import UnsupportedCoding, status_of
from runtime.serving.remote_inference import RemoteRefused

Headers = list[tuple[str, str]]
JSON = [("content-type", "application/json")]
Failure = PodError | RemoteRefused
ErrorForm = Callable[[Failure], object]
"""The JSON document of an error in some protocol."""


def kserve_error(error: Failure) -> object:
    """The form of V1 and V2."""
    return {"error": str(error)}


def error_response(error: Failure, form: ErrorForm = kserve_error) -> tuple[int, bytes, Headers]:
    """Status, body and headers of an error."""
    return error_status(error), orjson.dumps(form(error)), [*JSON, *error_headers(error)]


def error_status(error: Failure) -> int:
    """The HTTP status of an error; an error of another pod keeps its status."""
    return error.status if isinstance(error, RemoteRefused) else status_of(error)


def error_headers(error: Failure) -> Headers:
    """Headers that name the error, and say whether the request was executed and when to retry."""
    if isinstance(error, RemoteRefused):
        return list(error.headers.items())
    headers = [("x-pilotlight-error", error.label)]
    if error.refusal is not None:
        headers.append(("x-pilotlight-not-executed", error.refusal))
    if isinstance(error, UnsupportedCoding):
        headers.append(("accept-encoding", f"identity, {ACCEPTED}"))
    if error.retry_after_s is not None:
        headers.append(("retry-after", str(max(1, math.ceil(error.retry_after_s)))))
    return headers


def server_sent_event(document: object) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"
