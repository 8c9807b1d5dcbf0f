"""OpenAI's protocol at the gateway: the model that a body names, and the shape of errors.

A body is looked into only where neither path nor Host names the model, and no further than to its
`model`, by a scanner that steps over strings whole.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.errors import BadRequest, GatewayError, UnknownModel
from registry.domain.model import ModelName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.http.body import RequestBody

CALLS: Final = {
    "completions": "Go on with a text; `stream` sends it as it is made.",
    "chat/completions": "Answer a conversation.",
    "embeddings": "Embed texts.",
    "images/generations": "Make images from a text.",
}
"""What is passed on to pods, and what it does."""
PATH: Final = re.compile(f"/openai/v1/({'|'.join(CALLS)})")
_FIRST_BYTES: Final = 4096
"""What is looked at before more of the body is waited for; the name is nearly always in it."""
_LONGEST_NAME: Final = 253
_TOKEN: Final = re.compile(
    rb'[\s\x00]*+(?:("[^"\\]*+(?:\\.[^"\\]*+)*+")|([{}\[\]:,])|([^\s"{}\[\]:,]++))', re.DOTALL
)
_TYPES: Final = {429: "rate_limit_error", 503: "service_unavailable_error", 504: "timeout_error"}


class _Incomplete(Exception):
    """The bytes end before the model's name."""


async def model_of_body(body: RequestBody) -> str:
    """The `model` of a body, which stays whole for the pod.

    Raises:
        BadRequest: it names none within what the gateway holds of a body.
    """
    while not body.is_whole and body.seen_bytes < _FIRST_BYTES:
        await body.hold_more()
    try:
        return _model_of(body.held)
    except _Incomplete:
        if body.is_whole and body.seen_bytes <= _FIRST_BYTES:
            raise _unnamed(body.seen_bytes) from None
    await body.hold()
    try:
        return await asyncio.to_thread(_model_of, body.held)  # up to a megabyte: not on the loop
    except _Incomplete:
        raise _unnamed(body.seen_bytes) from None


def _unnamed(seen_bytes: int) -> BadRequest:
    return BadRequest(
        f"the body must name a 'model', within its first bytes; {seen_bytes} were looked at"
    )


def _model_of(pieces: Sequence[bytes]) -> str:
    return model_in(b"".join(pieces))


def model_in(beginning: bytes) -> str:
    """The value of the outermost `model` key. Raises BadRequest, _Incomplete."""
    depth = at = 0
    is_key = False
    match = _TOKEN.match(beginning)
    while match is not None:
        text, mark, _ = match.groups()
        at = match.end()
        if depth == 1 and is_key and text == b'"model"':
            return _value(beginning, at)
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
        if depth < 1:
            raise BadRequest("the body must be a JSON object that names a 'model'")
        is_key = mark == b"," or (mark == b"{" and depth == 1)
        match = _TOKEN.match(beginning, at)
    raise _Incomplete


def _value(beginning: bytes, at: int) -> str:
    colon = _TOKEN.match(beginning, at)
    value = _TOKEN.match(beginning, colon.end()) if colon is not None else None
    if colon is None or value is None:
        raise _Incomplete
    try:
        name = orjson.loads(value[1] or b"null")
    except orjson.JSONDecodeError:
        name = None
    if colon[2] != b":" or not isinstance(name, str) or not name:
        raise BadRequest("'model' must be a string that names a model")
    return name


def model_named(text: str) -> ModelName:
    """The model of the namespace `default` that a body names. Raises ModelNotFound."""
    if len(text) > _LONGEST_NAME or not text.isprintable() or any(c in text for c in "/~\\"):
        raise UnknownModel(
            f"model {text[:_LONGEST_NAME]!r} does not exist here; models of other namespaces are"
            " at /serving/NAMESPACE/NAME/openai/v1"
        )
    return ModelName("default", text)


def error_document(error: GatewayError) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    status = int(error.status)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = "model_not_found" if isinstance(error, UnknownModel) else str(error.reason)
    param = "model" if isinstance(error, UnknownModel) else None
    return {"error": {"message": str(error), "type": kind, "param": param, "code": code}}
