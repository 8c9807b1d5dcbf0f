"""Reads what a request to the scheduler asks for, and checks a workflow's arguments.

Raises BadRequest, TooLarge.
"""

import math
import re
from typing import Any, Final

import orjson
from fastapi import Request

from common.shown_value import json_fault, kind_of
from registry.domain.model import ModelName
from workflows.scheduling.policies import SCHEDULING
from workflows.service.errors import BadRequest, TooLarge

NAMESPACE_HEADER: Final = "x-pilotlight-namespace"
MAX_BODY_BYTES: Final = 16 * 1024**2
_MAX_DEADLINE_MS: Final = 86_400_000
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def namespace_of(request: Request) -> str:
    return request.headers.get(NAMESPACE_HEADER, "default")


def workflow_of(request: Request, name: str) -> ModelName:
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"a workflow's name has 1 to 63 small letters, digits and hyphens, was {name[:80]!r}"
        )
    return ModelName(namespace_of(request), name)


async def read_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge(f"a body may have {MAX_BODY_BYTES} bytes")
    return bytes(body)


async def read_text(request: Request) -> str:
    try:
        return (await read_body(request)).decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body must be UTF-8, but its byte {error.start} is not") from None


def arguments_of(body: bytes) -> dict[str, Any]:
    try:
        arguments = orjson.loads(body) if body else {}
    except ValueError as error:
        raise BadRequest(
            f"the body must be a JSON object of arguments: {json_fault(error)}"
        ) from None
    if not isinstance(arguments, dict):
        raise BadRequest(f"the body must be a JSON object of arguments, was {kind_of(arguments)}")
    return arguments


def deadline_of(request: Request) -> float | None:
    text = request.headers.get("x-pilotlight-deadline-ms")
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= _MAX_DEADLINE_MS:
        raise BadRequest(
            "header x-pilotlight-deadline-ms must be a positive number of milliseconds up to "
            f"{_MAX_DEADLINE_MS}, was {text[:40]!r}"
        )
    return number / 1000


def scheduling_of(request: Request) -> str | None:
    text = request.headers.get("x-pilotlight-scheduling")
    if text is None:
        return None
    if text not in SCHEDULING:
        raise BadRequest(
            f"header x-pilotlight-scheduling must be one of {SCHEDULING}, was {text[:40]!r}"
        )
    return text


def idempotency_key_of(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= 256:
        raise BadRequest("header idempotency-key must have 1 to 256 characters")
    return key
